"""What a person orders for one run: end the trainer, collect, stop the host."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from experiment.errors import (
    GuardRefused,
    HostUnreachable,
    NotFound,
    RemoteStepFailed,
    StepTimeout,
)
from experiment.ledger import Ledger, states
from experiment.paths import Home
from experiment.steps.collect import COLLECTABLE, collect
from experiment.steps.monitor import status
from experiment.steps.opening import controlling
from experiment.steps.session import RunRef, Session, attached
from experiment.steps.shutdown import cost_of, money_stop, shutdown

STOP_GRACE_SECONDS = 30


def stop_trainer(
    home: Home, name: str, *, force: bool, who: str, dry_run: bool = False
) -> dict[str, Any]:
    """TERM to the trainer's process group, and KILL only when forced.

    The order is recorded first: the run's end is then known to be wanted.

    Raises:
        NotFound: never launched.
        HostUnreachable: the order is recorded, the host did not hear it.
    """
    with attached(_ref(home, name)) as session:
        if not session.was_begun("launch"):
            raise NotFound(
                "nothing to stop",
                f"run {session.run_id}",
                expected="a launched trainer",
                found=str(session.state()),
                exit_code=1,
            )
        body = {"run_id": session.run_id, "job": session.job}
        if dry_run:
            return {**body, "dry_run": True}
        evidence = {"who": who, "force": force, "what": "trainer"}
        session.ledger.note(session.run_id, "stop_requested", evidence)
        found = session.door().call(
            "stop",
            {
                "run_root": session.run_root,
                "force": force,
                "grace_seconds": STOP_GRACE_SECONDS,
            },
            ref=_latest_request(session),
            timeout=STOP_GRACE_SECONDS + 30,
        )
        return {**body, **found}


def collect_run(home: Home, name: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Collect outside a flow.

    Raises:
        GuardRefused: nothing to collect yet.
        Busy: a flow run is at it.
    """
    ref = _ref(home, name)
    with attached(ref) as session:
        state = session.state()
        if dry_run:
            if state not in COLLECTABLE:
                raise _not_collectable(session)
            return {"dry_run": True, "run_id": session.run_id, "state": state}
        if state not in COLLECTABLE and not session.is_done("collect"):
            raise _not_collectable(session)
    with controlling(ref) as held, attached(held) as session:
        found = collect(session)
        return {"run_id": session.run_id, "state": session.state(), **found}


def shutdown_run(home: Home, name: str, *, who: str, dry_run: bool) -> dict[str, Any]:
    """Stop the meter on a person's order. From VERIFIED or FAILED the run enters SHUTDOWN too.

    Raises:
        GuardRefused: the trainer is alive.
        HostNotStopped: the provider does not confirm.
        NotFound: nothing is rented.
    """
    ref = _ref(home, name)
    with attached(ref) as session:
        rental = session.rental
        body = {"run_id": session.run_id, "instance": rental.instance, "status": rental.status}
        _unless_anothers(session)
        _unless_training(session)
        if dry_run:
            return {**body, "dry_run": True}
        evidence = {"who": who, "what": "host"}
        session.ledger.note(session.run_id, "stop_requested", evidence)
    # A flow that holds the job sees the order within a poll, stops the host and lets the job go.
    with controlling(ref) as held, attached(held) as session:
        if session.state() in (states.VERIFIED, states.FAILED):
            found = shutdown(session, order=f"charter shutdown by {who}")
            return {**body, "status": "closed", **found}
        closed = money_stop(session, session.rental, by=f"charter shutdown by {who}")
        return {
            **body,
            "status": closed.status,
            "receipt": closed.receipt,
            "cost": dict(cost_of(session)),
        }


def _unless_anothers(session: Session) -> None:
    """A host that another run took over is that run's to stop."""
    others = [run for run in session.rentals.leased(session.rental.name) if run != session.run_id]
    if others:
        raise GuardRefused(
            "shutdown refused",
            str(session.rental.instance),
            expected=f"the host of run {session.run_id}",
            found=f"run {others[0]} works on it now",
            hint=f"charter shutdown {others[0]}",
        )


def _unless_training(session: Session) -> None:
    if not session.was_begun("launch") or session.rental.status == "closed":
        return
    try:
        seen = status(session)
    except (HostUnreachable, StepTimeout, RemoteStepFailed):
        # The person wants the meter off, and the host can't be asked: the provider decides.
        return
    if seen["process"] and seen["process"]["alive"]:
        raise GuardRefused(
            "shutdown refused",
            f"run {session.run_id}",
            expected="a trainer that has ended",
            found=f"process {seen['process']['pid']} alive",
            hint=f"charter stop {session.run_id} first",
        )


def _not_collectable(session: Session) -> GuardRefused:
    return GuardRefused(
        "collect refused",
        f"run {session.run_id}",
        expected="one of " + ", ".join(COLLECTABLE),
        found=str(session.state()),
        hint=f"charter status {session.run_id}",
    )


def _latest_request(session: Session) -> Any:
    """A request under the present epoch: a person's order takes no lock, the flow keeps its own."""
    entries = session.ledger.entries(session.run_id)
    session.epoch = max(int(entry["epoch"]) for entry in entries)
    return session.request(uuid4().hex[:12])


def _ref(home: Home, name: str) -> RunRef:
    ledger = Ledger.existing(home)
    try:
        return RunRef(str(home.root), ledger.resolve(name).run_id)
    finally:
        ledger.close()
