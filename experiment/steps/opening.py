"""Opening a run: a new one, or the unfinished one that is the same experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from experiment import __version__
from experiment.clock import Clock
from experiment.contract import load_contract
from experiment.contract.model import Contract
from experiment.errors import Busy
from experiment.ledger import Ledger, RunRow, hold, states
from experiment.paths import Home
from experiment.steps.session import RunRef


def open_run(
    home: Home, contract: Contract, *, new: bool = False, clock: Clock | None = None
) -> tuple[RunRow, bool]:
    """The run that this contract means.

    Returns:
        (run, continued): the job's unfinished run when the contract is unchanged, else a new one.

    Raises:
        Busy: the unfinished run has another contract.
    """
    ledger = Ledger.open(home, clock)
    try:
        return _open(ledger, contract, new)
    except Busy:
        # Somebody opened a run of the job at the same moment: that one is meant, or refused.
        return _open(ledger, contract, new)
    finally:
        ledger.close()


def _open(ledger: Ledger, contract: Contract, new: bool) -> tuple[RunRow, bool]:
    newest = ledger.newest(contract.job)
    if newest is not None and not is_over(ledger, newest) and not new:
        if newest.contract_sha256 == contract.sha256:
            return newest, True
        raise Busy(
            "job has an unfinished run with another contract",
            f"{contract.job}, run {newest.run_id} ({newest.state})",
            expected=f"contract {newest.contract_sha256[:12]}",
            found=f"contract {contract.sha256[:12]}",
            hint="charter run --new starts another beside it",
        )
    created = ledger.create_run(
        contract.job,
        contract.canonical(),
        contract.sha256,
        str(contract.base),
        __version__,
        after=newest.run_id if newest else None,
        alone=True,
    )
    return created, False


def is_over(ledger: Ledger, run: RunRow) -> bool:
    """Whether a walk would do nothing more for the run.

    A verified run is over when it is sealed, and its host off unless the contract keeps it: a
    controller that dies between shutdown and seal leaves a run that is not over.
    """
    if run.state == states.FAILED:
        return True
    if run.state == states.COLLECTED and not states.completed_before_collection(
        ledger.history(run.run_id)
    ):
        return True  # a salvage: it is never verified
    if ledger.done(run.run_id, "verify") is None:
        return run.state == states.SHUTDOWN
    kept = run.contract["billing"]["shutdown"] == "keep" and run.state == states.VERIFIED
    return ledger.done(run.run_id, "seal") is not None and (kept or run.state == states.SHUTDOWN)


def open_from_flow(
    home: Home, text: str, run_id: str, overrides: Mapping[str, str], flow_run: str
) -> RunRef:
    """The run of a flow run. A flow restarted by a resume finds the run that it opened before.

    Args:
        text: path of the contract; not looked at when the run is known already.
        run_id: a run that somebody (the CLI) opened; may be empty.
        flow_run: the flow run's own id.
    """
    ledger = Ledger.open(home)
    try:
        known = [run for run in ledger.runs() if run.flow_run == flow_run]
    finally:
        ledger.close()
    if run_id:
        chosen = run_id
    elif known:
        chosen = known[0].run_id
    else:
        chosen = open_run(home, load_contract(Path(text), overrides))[0].run_id
    return RunRef(str(home.root), chosen)


@contextmanager
def controlling(ref: RunRef, flow_run: str = "") -> Iterator[RunRef]:
    """Hold the run's job for a while: the reference with the lock's epoch in it.

    Args:
        flow_run: the flow run that holds it from now on, for those who follow or answer it.

    Leaving gives the lock back and touches nothing else, however it is left.

    Raises:
        Busy: another controller holds the job.
    """
    ledger = Ledger.existing(Home(Path(ref.home)))
    try:
        with hold(ledger, ledger.run(ref.run_id).job) as lock:
            if flow_run:
                ledger.set_flow_run(ref.run_id, flow_run)
            yield replace(ref, epoch=lock.epoch)
    finally:
        ledger.close()
