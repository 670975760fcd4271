"""The same life under a real Prefect server: the gate, kills, cancels, restarts, two at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments import server, services
from deployments.flow_runs import FlowRuns
from experiment.paths import Home
from experiment.steps import TABLE
from experiment.steps.opening import is_over
from remote.agent import process
from tests.e2e.conftest import PROJECT, REPOSITORY, World, give_back

pytestmark = [pytest.mark.prefect, pytest.mark.sshd]

WAIT_SECONDS = 90.0
CHARTER = Path(sys.executable).with_name("charter")


@dataclass
class Controlled(World):
    """A world whose controllers are flow runs; `fault` is the file that the runner reads."""

    fault: Path = Path()

    def charter(self, *words: str, timeout: float = 150) -> tuple[int, dict[str, Any]]:
        """One command with --json: its exit code and what it printed."""
        done = subprocess.run(
            [CHARTER, "--home", str(self.home.root), "--json", *words],
            cwd=REPOSITORY,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start(self, *words: str) -> dict[str, Any]:
        code, body = self.charter("run", str(self.contract), "--detach", *words)
        assert code == 0, body
        return body

    def finish(self) -> None:
        """Run it again until it is through; a finished run would start another one."""
        if is_over(self.ledger(), self.run()):
            assert self.run().state == "SHUTDOWN"
            return
        code, body = self.charter("run", str(self.contract))
        assert (code, body.get("state")) == (0, "SHUTDOWN"), body

    def flow_run(self, started: dict[str, Any]) -> Any:
        runs = FlowRuns(self.home)
        try:
            return runs.get(started["flow_run_id"])
        finally:
            runs.close()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that another process does, within bounds."""
        give_up = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < give_up, f"not within {WAIT_SECONDS} s: {what}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Path]]:
    """One server and its runners for all of this file's tests."""
    folder = tmp_path_factory.mktemp("served")
    home = Home(folder / "home")
    before = dict(os.environ)
    fault = folder / "fault"
    os.environ.update(
        CHARTER_LOCAL_BASE=sys.prefix, CHARTER_LEASE_SECONDS="3", CHARTER_FAULT=f"@{fault}"
    )
    server.up(home)
    try:
        yield home, fault
    finally:
        server.down(home)
        give_back(home)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def controlled(
    served: tuple[Home, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Controlled:
    """A project of this test's own: its job is named after it."""
    home, fault = served
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    words = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    job = "-".join(word for word in words.split("-") if word)[:40].strip("-")
    env = {name: value for name, value in os.environ.items() if name != "CHARTER_FAULT"}
    made = Controlled(home, project / "contract.yaml", env, job=job, fault=fault)
    made.set("job: tiny", f"job: {job}")
    return made


def _ask(world: Controlled) -> None:
    world.set("approval: preauthorised", "approval: ask")


def _long(world: Controlled, seconds: float = 60) -> None:
    world.set('TRAIN_SECONDS: "0.3"', f'TRAIN_SECONDS: "{seconds}"')


def test_the_form_answered_in_the_dashboard(controlled: Controlled) -> None:
    """Suspended at the gate with nothing rented; a bad answer asks again; a good one finishes."""
    _ask(controlled)
    started = controlled.start()
    controlled.until(lambda: controlled.flow_run(started).suspended, "suspended")
    assert controlled.states() == ["PLANNED", "PREPARED"]
    assert controlled.rentals() == []
    assert controlled.charter("status", controlled.job)[1]["approval"] == "pending"
    runs = FlowRuns(controlled.home)
    with pytest.raises(Exception, match=r"(?i)valid|schema|refused|took|take"):
        runs.resume(started["flow_run_id"], {"decision": "perhaps"})
    runs.resume(started["flow_run_id"], {"decision": "approve", "who": "the dashboard"})
    runs.close()
    controlled.until(lambda: controlled.flow_run(started).ended, "ended")
    flow_run = controlled.flow_run(started)
    assert (flow_run.kind, flow_run.name) == ("COMPLETED", "SHUTDOWN")
    (approved,) = [e["evidence"] for e in controlled.entries() if e["step"] == "answer"]
    assert (approved["who"], approved["channel"]) == ("the dashboard", "dashboard")
    controlled.must_be_whole()


@pytest.mark.slow
def test_refused_in_the_terminal(controlled: Controlled) -> None:
    """A refusal ends the flow run as Cancelled; nothing is rented; the exit code is 5."""
    _ask(controlled)
    started = controlled.start()
    controlled.until(lambda: controlled.flow_run(started).suspended, "suspended")
    assert controlled.charter("refuse", controlled.job, "--why", "too dear")[0] == 0
    controlled.until(lambda: controlled.flow_run(started).ended, "ended")
    assert controlled.flow_run(started).kind == "CANCELLED"
    assert controlled.rentals() == []
    code, body = controlled.charter("approve", controlled.job)
    assert (code, body["error"]["kind"]) == (5, "approval_needed")


def test_runner_and_server_restarted_at_the_gate(controlled: Controlled) -> None:
    """Suspended, everything of ours ended and started again, then approved in the terminal."""
    _ask(controlled)
    started = controlled.start()
    controlled.until(lambda: controlled.flow_run(started).suspended, "suspended")
    # Prefect calls a run Suspended a moment before its process is gone, and a runner that ends
    # in that moment calls it Cancelled: then nobody is asked twice for nothing, but asked again.
    controlled.until(lambda: not services.flow_processes(controlled.home), "process gone")
    server.down(controlled.home)
    server.up(controlled.home)
    assert controlled.charter("approve", controlled.job)[0] == 0
    controlled.until(lambda: controlled.flow_run(started).ended, "ended")
    assert controlled.flow_run(started).name == "SHUTDOWN"
    controlled.must_be_whole()


KILLED = ["rent.created", "monitor.intent"]
EVERY = [f"{step.name}.effect" for step in TABLE]


@pytest.mark.parametrize(
    "point",
    [
        *KILLED,
        *(pytest.param(p, marks=pytest.mark.slow) for p in EVERY if p not in KILLED),
    ],
)
def test_flow_process_killed(controlled: Controlled, point: str) -> None:
    """SIGKILL of the flow's process at this point; `charter run` again finishes the same run."""
    controlled.fault.write_text(f"kill:{point}")
    started = controlled.start()
    controlled.until(lambda: not controlled.fault.exists(), f"killed at {point}")
    controlled.until(lambda: controlled.flow_run(started).ended, "crashed")
    assert controlled.flow_run(started).kind == "CRASHED"
    controlled.finish()
    controlled.must_be_whole()


def _until_training(world: Controlled) -> int:
    """The trainer's PID, once it runs and the ledger knows it."""
    world.until(lambda: world.ledger().newest(world.job) is not None, "a run")
    world.until(lambda: "RUNNING" in world.states(), "RUNNING")
    (pid,) = world.host_pids()
    return pid


def test_cancelled_from_the_api_during_training(controlled: Controlled) -> None:
    """A cancel detaches: the same trainer works on, and the next run goes on with it."""
    _long(controlled, 15)
    started = controlled.start()
    pid = _until_training(controlled)
    identity = process.identify(pid)
    runs = FlowRuns(controlled.home)
    runs.cancel(started["flow_run_id"])
    runs.close()
    controlled.until(lambda: controlled.flow_run(started).kind == "CANCELLED", "cancelled")
    assert process.alive(identity)
    assert controlled.instances() == ["running"]
    controlled.finish()
    controlled.must_be_whole()


@pytest.mark.slow
def test_runner_ended_during_training(controlled: Controlled) -> None:
    """`charter down` and SIGTERM detach: the trainer works on, `up` and `run` finish."""
    _long(controlled, 20)
    controlled.start()
    identity = process.identify(_until_training(controlled))
    server.down(controlled.home)
    assert process.alive(identity)
    assert controlled.instances() == ["running"]
    server.up(controlled.home)
    controlled.finish()
    controlled.must_be_whole()


@pytest.mark.slow
def test_two_flow_runs_of_one_run(controlled: Controlled) -> None:
    """A second flow run of the same run waits or gives up as Busy; one rental, one launch."""
    _long(controlled, 3)
    first = controlled.start()
    runs = FlowRuns(controlled.home)
    parameters = {"run_id": first["run_id"], "goal": "full"}
    second = runs.start(parameters, key=f"second-{first['run_id']}", tags=[])
    runs.close()
    for flow_run_id in (first["flow_run_id"], second.flow_run_id):
        body = {"flow_run_id": flow_run_id}
        controlled.until(lambda body=body: controlled.flow_run(body).ended, "both ended")
    controlled.finish()
    controlled.must_be_whole()


@pytest.mark.slow
def test_stopped_past_the_lease(controlled: Controlled) -> None:
    """SIGSTOP between the rental's creation and its record: another controller takes over after
    the lease; the sleeper, continued, finds itself fenced and does nothing more."""
    controlled.fault.write_text("stop:rent.created")
    controlled.start()
    controlled.until(lambda: not controlled.fault.exists(), "stopped")
    sleeper = next(
        p
        for p in psutil.process_iter(["status", "cmdline"])
        if p.info["status"] == psutil.STATUS_STOPPED and "prefect" in " ".join(p.info["cmdline"])
    )
    _, out, err = controlled.drive()
    assert out == "SHUTDOWN", err
    before = controlled.entries()
    sleeper.send_signal(signal.SIGCONT)
    sleeper.wait(60)
    assert controlled.entries() == before
    controlled.must_be_whole()
