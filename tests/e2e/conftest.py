"""A small project, a home whose rented hosts are given back, and controllers as processes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiment.clock import SystemClock
from experiment.errors import CharterError
from experiment.evidence.chain import check_chain
from experiment.evidence.verify import verify_path
from experiment.ledger import Ledger, RunRow
from experiment.paths import Home
from experiment.providers.registry import get_provider
from experiment.rentals import Rental, Rentals
from experiment.steps.shutdown import confirm_off
from tests.e2e import drive

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).resolve().parent / "project"


# Forked from a process that has imported the library: a controller then starts in milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.e2e.drive"])


class Controller:
    """A controller process under way."""

    def __init__(self, world: World, environ: dict[str, str]) -> None:
        number = len(list(world.contract.parent.parent.glob("controller-*.out")))
        stem = world.contract.parent.parent / f"controller-{number}"
        self._out, self._err = Path(f"{stem}.out"), Path(f"{stem}.err")
        self._out.touch()
        arguments = (environ, str(self._out), str(self._err))
        self.process = FORKS.Process(
            target=drive.child, args=(*arguments, str(world.home.root), str(world.contract))
        )
        self.process.start()

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        """Exit code (negative for a signal), stdout, stderr."""
        self.process.join(timeout)
        code = self.process.exitcode
        assert code is not None, f"a controller did not end within {timeout:.0f} s"
        return code, self._out.read_text().strip(), self._err.read_text()


@dataclass
class World:
    """One home with one project, and what a test asks about it."""

    home: Home
    contract: Path
    env: dict[str, str]
    job: str = "tiny"

    def controller(self, **extra: str) -> Controller:
        """A controller process; `extra` goes into its environment."""
        return Controller(self, {**self.env, **extra})

    def drive(self, **extra: str) -> tuple[int, str, str]:
        """Run a controller to its end: exit code (negative for a signal), stdout, stderr."""
        return self.controller(**extra).end()

    def ledger(self) -> Ledger:
        return Ledger.open(self.home)

    def run(self) -> RunRow:
        found = self.ledger().newest(self.job)
        assert found is not None
        return found

    def entries(self) -> list[dict[str, Any]]:
        return self.ledger().entries(self.run().run_id)

    def rentals(self) -> list[Rental]:
        return [r for r in Rentals(self.ledger()).all() if r.job == self.job]

    def instances(self) -> list[str]:
        """The states of every instance that was ever made for this job."""
        found = get_provider("local", self.home, SystemClock()).list()
        return [i.state for i in found if i.name.startswith(f"charter-{self.job}-2")]

    def results(self) -> Path:
        run = self.run()
        return self.home.results(run.job, run.run_id)

    def states(self) -> list[str]:
        return [e["to"] for e in self.entries() if e["to"]]

    def host_pids(self) -> list[int]:
        """The trainer's PIDs, as it wrote them down itself on the host."""
        run = self.run()
        (root,) = self.home.hosts.glob(f"*/data/runs/{run.job}/{run.run_id}")
        file = root / "launched.txt"
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def set(self, old: str, new: str) -> None:
        """Change the contract's text; the old text must be there."""
        text = self.contract.read_text()
        assert old in text
        self.contract.write_text(text.replace(old, new))

    def must_be_whole(self, launches: int = 1) -> None:
        """What holds after any crash once the run is through: one rental, one launch, one chain."""
        entries = self.entries()
        assert check_chain(entries) == []
        assert [e["to"] for e in entries if e["to"] in ("RENTED", "RUNNING", "SHUTDOWN")] == [
            "RENTED",
            "RUNNING",
            "SHUTDOWN",
        ]
        assert [(r.kept, r.status) for r in self.rentals()] == [(True, "closed")]
        assert self.instances() == ["off"]
        assert len((self.results() / "launched.txt").read_text().split()) == launches
        report = verify_path(self.results())
        assert report["ok"], report["broken"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A copy of the project and a home; every host that a test rented is released."""
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    env = {**os.environ, "CHARTER_LOCAL_BASE": sys.prefix, "CHARTER_LEASE_SECONDS": "3"}
    made = World(Home(tmp_path / "home"), project / "contract.yaml", env)
    os.environ["CHARTER_LOCAL_BASE"] = sys.prefix
    yield made
    del os.environ["CHARTER_LOCAL_BASE"]
    give_back(made.home)


def give_back(home: Home) -> None:
    """Stop and release every instance of a home."""
    clock = SystemClock()
    provider = get_provider("local", home, clock)
    for instance in provider.list():
        with suppress(CharterError):  # a lost one is cleaned up by its release
            confirm_off(provider, instance.id, clock, by="test", within_seconds=30)
        provider.release(instance.id)
