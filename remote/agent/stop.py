"""Step `stop`: end a run's trainer with its whole group and everything that escaped from it."""

from __future__ import annotations

import signal
import time
from typing import Any, Dict, List, Mapping, Optional

from remote.agent.answer import now_utc
from remote.agent.errors import AgentError
from remote.agent.files import read_json_or_none, write_json
from remote.agent.launch_tree import ask_to_stop, asked_to_stop, members, signal_members
from remote.agent.layout import Layout, RunRoot
from remote.agent.process import alive

POLL_SECONDS = 0.2
KILL_WAIT_SECONDS = 10.0
RECORD_WAIT_SECONDS = 15.0
GRACE_SECONDS = 30.0


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """TERM, and KILL after the grace only when `force` is set.

    Request: `run_root`, `force`, `grace_seconds` (default 30). Evidence
    `{signalled: [{pid, group, signal}], exited, remaining: [pid], exit_record}`. A run that is
    over gives `signalled: []` and `exited: true`.

    Raises:
        AgentError: not_found, when nothing was ever launched in the run root.
    """
    root = layout.run_root(request.get("run_root"))
    record = read_json_or_none(root.launch)
    if not isinstance(record, dict):
        raise AgentError(
            "not_found",
            f"nothing was launched in run root {str(root.path)!r}",
            "check the run id, or launch first",
        )
    wanted = request.get("grace_seconds")
    grace = GRACE_SECONDS if wanted is None else float(wanted)
    watched = alive(record.get("supervisor"))
    lived = bool(members(record))
    signalled: List[Dict[str, Any]] = []
    if lived:
        ask_to_stop(root, record, "stop", signal.SIGTERM)
        signalled += signal_members(record, signal.SIGTERM)
        _wait_gone(record, grace)
    if request.get("force") and members(record):
        ask_to_stop(root, record, "stop", signal.SIGKILL)
        signalled += _kill_all(record)
    remaining = [row.pid for row in members(record)]
    ended = exit_record(root, record)
    if lived and not remaining and ended is None and not watched:
        ended = write_unobserved(root, record)
    return {
        "signalled": signalled,
        "exited": not remaining,
        "remaining": remaining,
        "exit_record": ended,
    }


def exit_record(root: RunRoot, record: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """This launch's exit record. A trainer that is gone while its supervisor lives has one in a
    moment: that moment is waited for."""
    give_up_at = time.monotonic() + RECORD_WAIT_SECONDS
    while True:
        watched = alive(record.get("supervisor"))
        gone = not alive(record)
        found = read_json_or_none(root.exit_record)
        if isinstance(found, dict) and found.get("request_id") == record["request_id"]:
            return found
        if not (watched and gone) or time.monotonic() >= give_up_at:
            return None
        time.sleep(0.05)


def write_unobserved(root: RunRoot, record: Mapping[str, Any]) -> Dict[str, Any]:
    """The exit record of a trainer that we ended while nobody was its parent any more."""
    asked = asked_to_stop(root, record)
    number = signal.Signals[asked["signal"]] if asked else signal.SIGTERM
    ended = {
        "schema_version": 1,
        "status": "FAILED",
        "exit_code": 128 + number,
        "signal": number.name,
        "finished_at": now_utc(),
        "pid": record["pid"],
        "start": record["start"],
        "boot_id": record["boot_id"],
        "request_id": record["request_id"],
        "attempt": record["attempt"],
        # Deduced from the signal that was sent: the supervisor was gone.
        "observed": False,
        "left_behind": [],
        "stop": asked,
    }
    write_json(root.exit_record, ended)
    return ended


def _kill_all(record: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """KILL until nothing is left: a member may have forked between look and signal."""
    signalled: List[Dict[str, Any]] = []
    give_up_at = time.monotonic() + KILL_WAIT_SECONDS
    while members(record) and time.monotonic() < give_up_at:
        signalled += signal_members(record, signal.SIGKILL)
        _wait_gone(record, 1.0)
    return signalled


def _wait_gone(record: Mapping[str, Any], seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while members(record) and time.monotonic() < give_up_at:
        time.sleep(POLL_SECONDS)
