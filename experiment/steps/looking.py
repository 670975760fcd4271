"""What a person sees of runs: one status, the list, the log. Changes nothing anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from experiment.approval.grants import GRANTED
from experiment.clock import iso
from experiment.errors import CharterError, HostUnreachable, NotFound
from experiment.ledger import Ledger, RunRow, states
from experiment.money.amounts import affordable_seconds, shown
from experiment.paths import Home
from experiment.rentals import Rental, Rentals
from experiment.steps.monitor import status as ask_host
from experiment.steps.session import RunRef, Session, attached

# States in which the host is asked; before and after them the ledger knows everything.
_ON_THE_HOST = (states.RUNNING,)


@dataclass(frozen=True)
class Look:
    """A status, and the error that kept it from being whole (exit 75), if any."""

    body: dict[str, Any]
    tail: list[str] = field(default_factory=list)
    error: CharterError | None = None


def look(home: Home, name: str) -> Look:
    """The status of a run (id or job), in the interface page's keys.

    Raises:
        NotFound: no such run.
    """
    with _opened(home, name) as session:
        run = session.run
        rental = session.rentals.of_run(run.run_id)
        monitored = session.ledger.done(run.run_id, "monitor", run.attempt)
        body = _skeleton(session, rental)
        if run.state not in _ON_THE_HOST:
            if monitored is not None:
                _from_record(body, monitored["evidence"])
            return Look(body)
        try:
            seen = ask_host(session)
        except (HostUnreachable, CharterError) as error:
            body["flags"]["control_plane"] = "unavailable"
            unreachable = isinstance(error, HostUnreachable)
            return Look(body, error=error if unreachable else None)
        _from_host(body, seen, session)
        return Look(body, tail=list(seen["log"]["tail"]))


def list_runs(home: Home) -> list[dict[str, Any]]:
    """Every run, newest first: job, run id, state, start and cost."""
    try:
        ledger = Ledger.existing(home)
    except NotFound:
        return []
    try:
        rentals = Rentals(ledger)
        return [_row(home, rentals, run) for run in ledger.runs()]
    finally:
        ledger.close()


def log_file(home: Home, run: RunRow) -> Path | None:
    """The collected log of a run, when there is one."""
    found = home.results(run.job, run.run_id) / "logs" / "run.log"
    return found if found.is_file() else None


def read_log(home: Home, name: str, *, tail: int | None = None, offset: int = 0) -> dict[str, Any]:
    """A part of the trainer's log: from the host while the run is there, else as collected.

    Args:
        tail: the last lines; None reads on from `offset` (bytes).

    Returns:
        `{text, next_offset, size, ended}`.

    Raises:
        NotFound: the run was never launched (exit 4).
        HostUnreachable: the host does not answer.
    """
    with _opened(home, name) as session:
        state = session.state()
        collected = log_file(home, session.run)
        if collected is not None and session.is_done("collect"):
            return _read_file(collected, tail, offset)
        if not session.is_done("launch"):
            raise NotFound(
                "no log yet",
                f"run {session.run_id}",
                expected="a launched run",
                found=str(state),
                hint="charter status",
                exit_code=4,
            )
        part = {"tail_lines": tail} if tail is not None else {"offset": offset}
        found = session.door().call(
            "logs",
            {"run_root": session.run_root, "max_bytes": 1 << 20, **part},
            ref=session.request(),
            timeout=30,
        )
        return {**found, "ended": state != states.RUNNING}


def _opened(home: Home, name: str) -> Any:
    ledger = Ledger.existing(home)
    try:
        run_id = ledger.resolve(name).run_id
    finally:
        ledger.close()
    return attached(RunRef(str(home.root), run_id))


def _skeleton(session: Session, rental: Rental | None) -> dict[str, Any]:
    run = session.run
    entries = session.ledger.entries(run.run_id)
    grant = session.grants.current(run.run_id, run.attempt)
    if grant is None:
        approval = "pending" if session.is_done("bundle") else "none"
    else:
        approval = grant.decision
    return {
        "job": run.job,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "state": run.state,
        "verdict": "UNKNOWN",
        "reason": "",
        "flags": {
            "control_plane": "ok",
            "stalled": False,
            "resumable": None,
            "bitwise_reproducible": session.contract.bitwise_reproducible,
        },
        "step": None,
        "total_steps": None,
        "eta_seconds": None,
        "pid": None,
        "host": _host(session, rental),
        "rental": _rental(session, rental),
        "approval": approval,
        "log_bytes": None,
        "results": str(session.results) if session.results.is_dir() else None,
        "error": last_error(entries),
        "updated_at": iso(session.clock.now()),
    }


def _host(session: Session, rental: Rental | None) -> dict[str, Any] | None:
    if rental is None or rental.instance is None:
        return None
    instance = session.provider.status(rental.instance)
    return {
        "provider": rental.provider,
        "instance": rental.instance,
        "state": instance.state,
        "gpu": instance.gpu,
        "address": instance.endpoint.address if instance.endpoint else None,
    }


def _rental(session: Session, rental: Rental | None) -> dict[str, Any] | None:
    if rental is None:
        return None
    now = session.clock.now()
    grant = session.grants.newest(session.run_id)
    deadline = None
    if grant is not None and grant.decision == GRANTED and rental.status == "open":
        hours = sum((s.seconds(now) for s in rental.segments), start=rental.rate * 0) / 3600
        left = affordable_seconds(
            grant.bounds.max_total,
            session.rentals.spent(run_id=session.run_id),
            session.rentals.reserved_elsewhere(session.job, rental.name),
            rental.rate,
            grant.bounds.max_hours - hours,
        )
        deadline = iso(now + timedelta(seconds=left))
    return {
        "status": rental.status,
        "rate": str(rental.rate),
        "currency": rental.currency,
        "spent": shown(session.rentals.spent(run_id=session.run_id)),
        "cap": str(grant.bounds.max_total) if grant else None,
        "deadline": deadline,
    }


def last_error(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What stopped the last walk, unless something was done since."""
    for entry in reversed(entries):
        if entry["phase"] == "note" and "error" in entry["evidence"]:
            found: dict[str, Any] = entry["evidence"]["error"]
            return found
        if entry["phase"] == "done":
            error: dict[str, Any] | None = entry["evidence"].get("error")
            if error is None and entry["to"] == states.PARTIAL:
                return {
                    "kind": "remote_step_failed",
                    "message": f"run is PARTIAL: {entry['evidence']['reason']}",
                    "hint": "correct the trainer or run.artifacts, then charter run again --new",
                    "exit_code": 1,
                }
            return error
    return None


def _from_record(body: dict[str, Any], evidence: dict[str, Any]) -> None:
    body["verdict"] = evidence["verdict"]
    body["reason"] = evidence["reason"]
    body["log_bytes"] = evidence["log_bytes"]
    body["step"] = evidence["latest"].get("step")


def _from_host(body: dict[str, Any], seen: dict[str, Any], session: Session) -> None:
    verdict = seen["verdict"]
    body["verdict"] = verdict["verdict"]
    body["reason"] = verdict["reason"]
    body["flags"]["stalled"] = bool(verdict.get("flags", {}).get("stalled"))
    body["log_bytes"] = seen["log"]["bytes"]
    if seen["process"]:
        body["pid"] = seen["process"]["pid"]
    points = seen["metrics"]["points"]
    if points:
        latest = points[-1]
        body["step"] = latest.get("step")
        body["total_steps"] = latest.get("total_steps")
        body["metrics"] = latest
    watchdog = seen.get("watchdog") or {}
    if body["rental"] is not None and watchdog.get("stop_at_seconds") is not None:
        # The host's own clock decides there: it is nearer the truth than our sum.
        stop_at = timedelta(seconds=watchdog["stop_at_seconds"])
        body["rental"]["deadline"] = iso(session.clock.now() + stop_at)


def _row(home: Home, rentals: Rentals, run: RunRow) -> dict[str, Any]:
    results = home.results(run.job, run.run_id)
    return {
        "job": run.job,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "state": run.state,
        "started_at": run.created_at,
        "cost": shown(rentals.spent(run_id=run.run_id)),
        "currency": run.contract["billing"]["currency"],
        "results": str(results) if results.is_dir() else None,
    }


def _read_file(path: Path, tail: int | None, offset: int) -> dict[str, Any]:
    data = path.read_bytes()
    if tail is not None:
        text = "\n".join(data.decode("utf-8", "replace").splitlines()[-tail:]) if tail else ""
    else:
        text = data[offset:].decode("utf-8", "replace")
    return {"text": text, "next_offset": len(data), "size": len(data), "ended": True}
