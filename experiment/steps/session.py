"""One run being worked on: its contract, ledger, provider and host, opened from a small reference.

A `RunRef` is all that travels between processes and into Prefect: names and a number, no secret,
no connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiment.approval.grants import Grant, Grants
from experiment.clock import Clock, SystemClock
from experiment.contract.model import Contract
from experiment.errors import NotFound, RemoteStepFailed
from experiment.hosts.agent_door import AgentDoor, RequestRef, find_python
from experiment.hosts.connect import connect
from experiment.ledger import Controller, Evidence, Ledger, RunRow
from experiment.paths import Home
from experiment.providers.base import Instance, Provider
from experiment.providers.registry import get_provider
from experiment.rentals import Rental, Rentals
from remote.agent.files import canonical_json, sha256_bytes


@dataclass(frozen=True)
class RunRef:
    """Which run, in which home, under which epoch of the job's lock."""

    home: str
    run_id: str
    epoch: int = 0


class Session:
    """A run and everything that its steps reach. Cheap to open; the host is reached on demand."""

    def __init__(self, home: Home, ledger: Ledger, run: RunRow, epoch: int = 0) -> None:
        self.home = home
        self.ledger = ledger
        self.run = run
        self.epoch = epoch
        self.clock: Clock = ledger.clock
        self.contract = Contract.from_canonical(run.contract, Path(run.base))
        self.rentals = Rentals(ledger, epoch, run.job)
        self.grants = Grants(ledger)
        self.controller = Controller(ledger, run.run_id, run.attempt, epoch)

    # Who and where

    @property
    def job(self) -> str:
        return self.run.job

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def attempt(self) -> int:
        return self.run.attempt

    @property
    def provider(self) -> Provider:
        return get_provider(self.contract.host.provider, self.home, self.clock)

    @property
    def results(self) -> Path:
        return self.home.results(self.job, self.run_id)

    @property
    def run_dir(self) -> Path:
        return self.home.run_dir(self.job, self.run_id)

    # What is recorded

    def recorded(self, step: str, *, any_attempt: bool = False) -> Evidence:
        """The evidence of a step that is done.

        Raises:
            NotFound: it is not.
        """
        entry = self.ledger.done(self.run_id, step, None if any_attempt else self.attempt)
        if entry is None:
            raise NotFound(
                "step is not done",
                f"{step} of run {self.run_id}, attempt {self.attempt}",
                hint="run the experiment again: only what is missing is done",
                exit_code=1,
            )
        evidence: Evidence = entry["evidence"]
        return evidence

    def is_done(self, step: str) -> bool:
        return self.ledger.done(self.run_id, step, self.attempt) is not None

    def was_begun(self, step: str) -> bool:
        """Whether its effect may have happened: an intent is enough."""
        return self.ledger.last(self.run_id, step, self.attempt) is not None

    def state(self) -> str | None:
        """The run's state as the ledger has it now."""
        return self.ledger.run(self.run_id).state

    @property
    def grant(self) -> Grant:
        """The approval under which this attempt spends, bound to what was shown."""
        return self.grants.require(self.run_id, self.attempt, self.digests())

    def digests(self) -> dict[str, str]:
        """What an approval is bound to: contract, bundle, inputs."""
        plan = self.recorded("plan", any_attempt=True)
        bundle = self.recorded("bundle")
        return {
            "contract": self.run.contract_sha256,
            "bundle": str(bundle["tree_sha256"]),
            "inputs": sha256_bytes(canonical_json(plan["inputs"])),
        }

    # The host

    @property
    def rental(self) -> Rental:
        """
        Raises:
            NotFound: the run has no rental.
        """
        rental = self.rentals.of_run(self.run_id)
        if rental is None or rental.instance is None:
            raise NotFound(
                "no rental", f"run {self.run_id}", hint="charter run CONTRACT", exit_code=1
            )
        return rental

    def instance(self) -> Instance:
        """The rented instance as its provider sees it now: ports change with a power cycle."""
        return self.provider.status(str(self.rental.instance))

    @property
    def data_root(self) -> str:
        """The contract's folder on the host, else the one that the provider gives."""
        given = self.contract.host.data_root
        return given or str(self.recorded("rent")["data_root"])

    def door(self) -> AgentDoor:
        """The agent on the host, reached through this process's one connection.

        Raises:
            HostUnreachable: the host does not answer.
            RemoteStepFailed: the provider says that it is off, or it has no Python.
        """
        instance = self.instance()
        if instance.state in ("off", "released", "lost") or instance.endpoint is None:
            raise RemoteStepFailed(
                "the host is not running",
                str(self.rental.instance),
                expected="running",
                found=instance.state,
                hint="charter run CONTRACT rents another",
            )
        host = connect(instance.endpoint, self.home)
        armed = self.ledger.done(self.run_id, "arm", self.attempt)
        if armed is None:
            return AgentDoor(host, self.data_root, find_python(host))
        found = armed["evidence"]
        # The agent that is there, whatever Charter this is: a live supervisor runs from it.
        return AgentDoor(host, self.data_root, found["agent_python"], found["agent_sha256"])

    def request(self, suffix: str = "") -> RequestRef:
        return RequestRef(self.job, self.run_id, self.attempt, self.epoch, suffix)

    def incarnation(self) -> dict[str, str]:
        """The host as it was armed: instance, boot and data disk. Part of later steps' inputs."""
        found: dict[str, str] = self.recorded("arm")["incarnation"]
        return found

    @property
    def run_root(self) -> str:
        return f"{self.data_root.rstrip('/')}/runs/{self.job}/{self.run_id}"


@contextmanager
def attached(ref: RunRef, clock: Clock | None = None) -> Iterator[Session]:
    """The session of a reference, for the length of one step."""
    home = Home(Path(ref.home))
    ledger = Ledger.existing(home, clock or SystemClock())
    try:
        yield Session(home, ledger, ledger.run(ref.run_id), ref.epoch)
    finally:
        ledger.close()
