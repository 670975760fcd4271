"""monitor: watch until the run's verdict is final. Losing the host's answer ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment.errors import CharterError, Fenced, RemoteStepFailed
from experiment.ledger import Evidence, states
from experiment.steps.session import Session
from experiment.steps.shutdown import money_stop

FIRST_POLL_SECONDS = 0.5
SLOWEST_POLL_SECONDS = 15.0
CONTACT_SECONDS = 60.0
TAIL_LINES = 40

# The verdict engine's words for a trainer that is no more, and the state each leads to.
_FINAL = {
    "COMPLETED": states.COMPLETED,
    "PARTIAL": states.PARTIAL,
    "STOPPED": states.PARTIAL,
    "FAILED": states.FAILED,
}

Report = Callable[[dict[str, Any]], None]


def _silent(_status: dict[str, Any]) -> None:
    """Nobody watches."""


def monitor(session: Session, report: Report = _silent) -> Evidence:
    """Poll the agent until the trainer has ended, and enter the state of its verdict.

    Args:
        report: called with each status, for progress.

    Raises:
        RemoteStepFailed: the provider says that the host itself is off or gone.
    """
    launched = session.recorded("launch")

    def do(_begun: Evidence) -> Evidence:
        return _watch(session, report)

    inputs = {"pid": launched["pid"], "start": launched["start"], "log": launched["log"]}
    return session.controller.once(
        "monitor", inputs, do, to=lambda evidence: _FINAL[evidence["verdict"]]
    )


def status(session: Session, *, log_offset: int = 0, metrics_offset: int = 0) -> dict[str, Any]:
    """One look at the run, by the agent.

    Raises:
        HostUnreachable: which says nothing about the run.
    """
    return session.door().call(
        "status",
        {
            "run_root": session.run_root,
            "log_offset": log_offset,
            "metrics_offset": metrics_offset,
            "tail_lines": TAIL_LINES,
            "artifacts": list(session.contract.run.artifacts),
        },
        ref=session.request(),
        timeout=30,
    )


def _watch(session: Session, report: Report) -> Evidence:
    pause = FIRST_POLL_SECONDS
    offset = 0
    last_contact = float("-inf")
    while True:
        _unless_ordered_off(session)
        try:
            if session.clock.monotonic() - last_contact >= CONTACT_SECONDS:
                contact(session, lease=True)
                last_contact = session.clock.monotonic()
            seen = status(session, metrics_offset=offset)
        except Fenced:
            raise
        except CharterError as error:
            # Whatever kept us from looking (a cut, a slow disk, a full one) says nothing about
            # the trainer: only the provider's word that the host is off ends the run.
            _unless_gone(session, error)
            report({"unreachable": str(error)})
            pause = min(max(pause * 2, 2.0), 60.0)
            session.clock.sleep(pause)
            continue
        offset = seen["metrics"]["next_offset"]
        report(seen)
        if seen["verdict"]["verdict"] in _FINAL:
            return _evidence(session, seen)
        pause = min(pause * 1.2, SLOWEST_POLL_SECONDS) if pause < SLOWEST_POLL_SECONDS else pause
        session.clock.sleep(pause)


def contact(session: Session, *, lease: bool) -> dict[str, Any]:
    """Tell the watchdog that somebody looks after the host: idle and collect grace start anew."""
    return session.door().call(
        "contact",
        {"lease": {"run_id": session.run_id} if lease else None},
        ref=session.request(),
        timeout=30,
    )


def _unless_ordered_off(session: Session) -> None:
    """A person ordered the host off while this controller holds the job: it does that."""
    launched = session.ledger.last(session.run_id, "launch", session.attempt)
    orders = [
        entry
        for entry in session.ledger.notes(session.run_id, "stop_requested")
        if entry["evidence"].get("what") == "host"
        and launched is not None
        and entry["seq"] > launched["seq"]
    ]
    if orders:
        who = orders[-1]["evidence"]["who"]
        money_stop(session, session.rental, by=f"charter shutdown by {who}")
        raise RemoteStepFailed(
            "the host was stopped by order",
            str(session.rental.instance),
            found=f"charter shutdown by {who}",
        )


def _unless_gone(session: Session, error: CharterError) -> None:
    """Unreachable is not dead; but what the provider has switched off will not answer again."""
    state = session.instance().state
    if state in ("off", "released", "lost"):
        raise RemoteStepFailed(
            "the host stopped during the run",
            str(session.rental.instance),
            expected="running",
            found=state,
            hint="the data disk is kept; charter run CONTRACT starts a new run",
        ) from error


def _evidence(session: Session, seen: dict[str, Any]) -> Evidence:
    verdict = seen["verdict"]
    found: Evidence = {
        "verdict": verdict["verdict"],
        "reason": verdict["reason"],
        "exit_record": seen["exit_record"],
        "outputs": seen["outputs"],
        "latest": _latest(seen),
        "log_bytes": seen["log"]["bytes"],
    }
    if _FINAL[verdict["verdict"]] == states.FAILED:
        found["error"] = {
            "kind": "remote_step_failed",
            "message": f"trainer failed: run {session.run_id}: {verdict['reason']}",
            "tail": seen["log"]["tail"][-10:],
        }
    return found


def _latest(seen: dict[str, Any]) -> dict[str, Any]:
    points = seen["metrics"]["points"]
    return dict(points[-1]) if points else {}
