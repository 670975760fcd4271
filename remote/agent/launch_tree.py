"""The processes of one launch: the trainer, its group, and everything it ever started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Set

from remote.agent.answer import now_utc
from remote.agent.files import read_json_or_none, write_json
from remote.agent.layout import Layout, RunRoot
from remote.agent.process import (
    DATA_ROOT_TAG,
    DEAD_STATES,
    LAUNCH_TAG,
    Facts,
    alive,
    all_facts,
    tagged,
)

STOP_REQUEST = "stop-request.json"


def latest_record(job_dir: Path) -> Optional[Dict[str, Any]]:
    """The launch record of a job's newest run on this host, None before its first launch."""
    try:
        latest = (job_dir / "latest-run.txt").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = read_json_or_none(Path(latest) / "launch.json") if latest else None
    return found if isinstance(found, dict) else None


def host_records(layout: Layout) -> List[Dict[str, Any]]:
    """The newest launch record of every job on the data root."""
    jobs = layout.data_root / "jobs"
    folders = sorted(jobs.iterdir()) if jobs.is_dir() else []
    found = (latest_record(folder) for folder in folders)
    return [record for record in found if record is not None]


def members(record: Mapping[str, Any]) -> List[Facts]:
    """Living processes of a launch: its trainer, all descendants, and whatever carries its tag.

    Tags find what left group and session; descent (orphans belong to the supervisor) finds what
    overwrote its environment. The supervisor itself is not one of them.
    """
    rows = [row for row in all_facts() if row.state not in DEAD_STATES]
    roots = [
        int(identity["pid"])
        for identity in (record, record.get("supervisor"))
        if identity and alive(identity)
    ]
    found = _descendants(rows, roots)
    # With the data root: request ids are times, and two homes of one machine may share one.
    if record.get("data_root"):
        tags = {LAUNCH_TAG: record["request_id"], DATA_ROOT_TAG: record["data_root"]}
        found.update(row.pid for row in tagged(tags))
    if alive(record):
        found.add(int(record["pid"]))
    # The supervisor's own group holds it and the tools it asks about resources; the trainer and
    # whatever came from it left that group at the start.
    supervisor = (record.get("supervisor") or {}).get("pid")
    return [row for row in rows if row.pid in found and row.group != supervisor]


def signal_members(record: Mapping[str, Any], number: signal.Signals) -> List[Dict[str, Any]]:
    """Send a signal to the launch's process groups, and to members of groups led by others.

    Returns:
        One `{pid, group, signal}` for each member that was reached.

    Raises:
        PermissionError: a member belongs to another user.
    """
    rows = members(record)
    pids = {row.pid for row in rows}
    led = {row.group for row in rows if row.group in pids}
    for group in sorted(led):
        _ignore_gone(os.killpg, group, number)
    for row in rows:
        if row.group not in led:
            _ignore_gone(os.kill, row.pid, number)
    return [{"pid": row.pid, "group": row.group, "signal": number.name} for row in rows]


def ask_to_stop(run: RunRoot, record: Mapping[str, Any], by: str, number: signal.Signals) -> None:
    """Note who asked the launch to end, for the exit record.

    A full disk loses the note, not the signal that follows.
    """
    note = {
        "request_id": record["request_id"],
        "by": by,
        "signal": number.name,
        "at_utc": now_utc(),
    }
    try:
        write_json(run.path / STOP_REQUEST, note)
    except OSError as error:
        sys.stderr.write(f"{note['at_utc']} note of the stop not written: {error}\n")


def asked_to_stop(run: RunRoot, record: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """`{request_id, by, signal, at_utc}` when this very launch was asked to end, else None."""
    note = read_json_or_none(run.path / STOP_REQUEST)
    if isinstance(note, dict) and note.get("request_id") == record["request_id"]:
        return note
    return None


def _descendants(rows: List[Facts], roots: List[int]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for row in rows:
        children.setdefault(row.parent, []).append(row.pid)
    found: Set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found


def _ignore_gone(send: Any, target: int, number: signal.Signals) -> None:
    try:
        send(target, number)
    except ProcessLookupError:
        return
