"""Step `status`: everything a poll wants to know, in one answer, changing nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from remote.agent import resources, verdict, watchdog_state
from remote.agent.clock import boot_seconds
from remote.agent.files import read_json_or_none
from remote.agent.launch_tree import members
from remote.agent.layout import Layout, RunRoot
from remote.agent.logs import read_text, section, tail_lines
from remote.agent.metrics import read_metrics
from remote.agent.process import alive, boot_id, facts, state
from remote.agent.stop import exit_record

TAIL_LINES = 80
TAIL_BYTES = 256 * 1024
LOG_BYTES = 1 << 20


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Request `run_root`, `log_offset`, `metrics_offset`, `tail_lines`, `artifacts`, optional
    `stale_after_seconds`.

    Evidence `{boot_id, marker, launch, process: {pid, alive, state, tree}, supervisor_alive,
    exit_record, log: {bytes, age_seconds, tail, text, offset, next_offset, grown},
    metrics: {points, next_offset}, outputs: {present, missing}, gpus, gpu_problem, disk, memory,
    watchdog, heartbeat_age_seconds, start_proof, verdict}`. `log.text` is what was written since
    `log_offset` (absent without one); `log.grown` counts bytes beyond our own header.
    """
    root = layout.run_root(request.get("run_root"))
    record = _record(root)
    # The process first, then the record: the other way round a trainer that ends between the two
    # would look as if it had left none.
    tree = [row.pid for row in members(record)] if record else []
    process: Dict[str, Any] = {
        "pid": record.get("pid"),
        "alive": alive(record),
        "state": state(record),
        "tree": tree,
    }
    ended = exit_record(root, record) if record else None
    log = _log(root, record, request)
    metrics = read_metrics(root.metrics, int(request.get("metrics_offset") or 0))
    outputs = _outputs(root, request.get("artifacts") or record.get("artifacts") or [])
    cards, problem = resources.gpus()
    supervisor = alive(record.get("supervisor")) if record else None
    seen = verdict.Observations(
        process_alive=process["alive"],
        group_alive=len(tree),
        exit_code=ended["exit_code"] if ended else None,
        missing=tuple(outputs["missing"]),
        log_bytes=log["bytes"],
        log_age=log["age_seconds"],
        progress_age=_age(root.metrics),
        gpu_utilization=max((card["utilization"] or 0 for card in cards), default=None),
        failure=verdict.failure_in(log["tail"]),
        supervisor_alive=supervisor,
        stale_after=float(request.get("stale_after_seconds") or verdict.STALE_SECONDS),
    )
    return {
        "boot_id": boot_id(),
        "marker": _marker(layout),
        "launch": {name: record.get(name) for name in ("request_id", "attempt", "started_at")},
        "process": process,
        "supervisor_alive": supervisor,
        "exit_record": ended,
        "log": log,
        "metrics": metrics._asdict(),
        "outputs": outputs,
        "gpus": cards,
        "gpu_problem": problem,
        "disk": _disk(root, layout),
        "memory": resources.cgroup(),
        "watchdog": watchdog_state.report(layout),
        "heartbeat_age_seconds": _heartbeat_age(root),
        "start_proof": _start_proof(record, process, ended, log, cards),
        "verdict": verdict.decide(seen),
    }


def _record(root: RunRoot) -> Dict[str, Any]:
    found = read_json_or_none(root.launch)
    return found if isinstance(found, dict) else {}


def _log(root: RunRoot, record: Mapping[str, Any], request: Mapping[str, Any]) -> Dict[str, Any]:
    wanted = request.get("tail_lines")
    lines = TAIL_LINES if wanted is None else int(wanted)
    try:
        size = root.log.stat().st_size
        tail = tail_lines(root.log, lines, TAIL_BYTES, section(root))
    except FileNotFoundError:
        return {"bytes": None, "age_seconds": None, "tail": [], "grown": 0}
    found: Dict[str, Any] = {
        "bytes": size,
        "age_seconds": _age(root.log),
        "tail": tail,
        "grown": max(0, size - int(record.get("log_bytes") or 0)),
    }
    offset = request.get("log_offset")
    if offset is not None:
        offset = int(offset) if int(offset) <= size else 0
        found["text"], found["next_offset"] = read_text(root.log, offset, LOG_BYTES)
        found["offset"] = offset
    return found


def _start_proof(
    record: Mapping[str, Any],
    process: Mapping[str, Any],
    ended: Optional[Mapping[str, Any]],
    log: Mapping[str, Any],
    cards: List[Dict[str, Any]],
) -> Dict[str, Any]:
    """What has to agree before a run may be called launched.

    A fast trainer that has ended with an exit record did start.
    """
    return {
        "recorded": bool(record),
        "process": bool(process["alive"] or ended),
        "log_grown": log["grown"] > 0,
        "gpu": _uses_gpu(process["tree"], cards),
    }


def _uses_gpu(tree: List[int], cards: List[Dict[str, Any]]) -> Optional[bool]:
    """Whether the run computes on a card; None without cards, or when the driver names pids of
    the machine under our container, so that nobody can tell."""
    if not cards:
        return None
    pids = {row["pid"] for row in resources.gpu_processes()}
    if pids & set(tree):
        return True
    foreign = any(facts(pid) is None for pid in pids)
    return None if foreign else False


def _outputs(root: RunRoot, artifacts: List[str]) -> Dict[str, List[str]]:
    """Required artifacts (paths or glob patterns in the run root), non-empty ones present."""
    found: Dict[str, List[str]] = {"present": [], "missing": []}
    for pattern in artifacts:
        there = any(_holds_something(path) for path in root.path.glob(pattern.rstrip("/")))
        found["present" if there else "missing"].append(pattern)
    return found


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0


def _age(path: Path) -> Optional[float]:
    """Seconds since the file grew; None without a file."""
    try:
        return round(max(0.0, time.time() - path.stat().st_mtime), 3)
    except FileNotFoundError:
        return None


def _heartbeat_age(root: RunRoot) -> Optional[float]:
    """By the boot clock: the wall's may have been set meanwhile. None after a reboot."""
    beat = read_json_or_none(root.heartbeat)
    if not isinstance(beat, dict) or beat.get("boot_id") != boot_id():
        return None
    return round(max(0.0, boot_seconds() - float(beat["boot_seconds"])), 3)


def _disk(root: RunRoot, layout: Layout) -> Optional[Dict[str, Any]]:
    for path in (root.path, layout.data_root):
        if path.is_dir():
            return resources.disk(str(path))
    return None


def _marker(layout: Layout) -> Optional[str]:
    try:
        return layout.marker.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
