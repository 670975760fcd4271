"""What state a run is in, and why: one pure function from observations, for every status view.

Rules, first match:

    the host can't be reached                        UNKNOWN    exit 75
    exit record, code 0, required outputs present    COMPLETED
    exit record, code 0, an output is missing        PARTIAL
    exit record, code not 0                          FAILED
    live process, fresh log                          RUNNING
    live process, stale log, busy GPU                RUNNING    silent_hang when no step either
    live process, stale log, idle GPU                RUNNING    stalled
    no process, no record, supervisor alive          RUNNING    it is about to write the record
    no process, no record, failure in the log        FAILED
    no process, no record, a log                     STOPPED    needs a person; state PARTIAL
    nothing                                          UNKNOWN

COMPLETED says that the process ended well and left its files, never that they are verified.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

EXIT_UNREACHABLE = 75
STALE_SECONDS = 900.0
BUSY_UTILIZATION = 5.0

# Only what a program prints when it dies. A bare "nan" or "timeout" is no failure; the full
# diagnosis is another module's.
FAILURES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^Traceback \(most recent call last\):",
        r"^[A-Za-z_][\w.]*(?:Error|Exception)(?::|$)",
        r"CUDA out of memory",
        r"No space left on device",
        r"^(?:.*: line \d+: +\d+ )?Killed\b",
        r"Segmentation fault",
        r"^Fatal Python error:",
    )
)


class Observations(NamedTuple):
    """What was seen. Everything may be unknown.

    reachable: the host answered. process_alive: pid, start time and boot id agree and it is no
    zombie. group_alive: pids of its group or tree that live. exit_code: of this launch's exit
    record, None without one. missing: required outputs that are not there. log_bytes: None
    without a log. log_age, progress_age: seconds since log and metrics last grew. gpu_utilization:
    per cent, the busiest card. failure: a line that tells of a failure, from this attempt's log.
    supervisor_alive: None when there is none.
    """

    reachable: bool = True
    process_alive: bool = False
    group_alive: int = 0
    exit_code: Optional[int] = None
    missing: Tuple[str, ...] = ()
    log_bytes: Optional[int] = None
    log_age: Optional[float] = None
    progress_age: Optional[float] = None
    gpu_utilization: Optional[float] = None
    failure: Optional[str] = None
    supervisor_alive: Optional[bool] = None
    stale_after: float = STALE_SECONDS


def decide(seen: Observations) -> Dict[str, Any]:
    """`{verdict, reason, exit_code, flags: {control_plane, stalled, silent_hang, unsupervised,
    needs_human}}`; `exit_code` is the status command's: 75 when the host can't be reached."""
    verdict, reason = _judge(seen)
    live = seen.reachable and verdict == "RUNNING"
    stale = live and not _fresh(seen)
    busy = _gpu_busy(seen)
    still = seen.progress_age is None or seen.progress_age > seen.stale_after
    return {
        "verdict": verdict,
        "reason": reason,
        "exit_code": 0 if seen.reachable else EXIT_UNREACHABLE,
        "flags": {
            "control_plane": "ok" if seen.reachable else "unavailable",
            "stalled": stale and not busy,
            "silent_hang": stale and busy and still,
            "unsupervised": live and seen.supervisor_alive is False,
            "needs_human": verdict == "STOPPED",
        },
    }


def failure_in(lines: List[str]) -> Optional[str]:
    """The first line that tells of a failure, None when none does."""
    for line in lines:
        if any(pattern.search(line) for pattern in FAILURES):
            return line
    return None


def lifecycle_word(verdict: str) -> str:
    """RUNNING, SUCCEEDED, FAILED or UNKNOWN, as the status script prints."""
    words = {"COMPLETED": "SUCCEEDED", "RUNNING": "RUNNING", "FAILED": "FAILED"}
    return words.get(verdict, "UNKNOWN")


def operations_word(verdict: str) -> str:
    """running, completed, failed, stopped or unknown, as `charter ops` prints."""
    return {"PARTIAL": "stopped"}.get(verdict, verdict.lower())


def agentic_word(verdict: str) -> str:
    """starting, running, completed, stopped or failed, as `charter rl status` prints."""
    return {"UNKNOWN": "starting", "PARTIAL": "stopped"}.get(verdict, verdict.lower())


def _judge(seen: Observations) -> Tuple[str, str]:
    if not seen.reachable:
        return "UNKNOWN", "the host can't be reached; that says nothing about the run"
    if seen.exit_code is not None:
        return _judge_ended(seen.exit_code, seen.missing)
    if seen.process_alive or seen.group_alive:
        return "RUNNING", _running_reason(seen)
    if seen.supervisor_alive:
        # Between the trainer's end and its record: a verdict now would be the wrong one.
        return "RUNNING", "the trainer has ended, its supervisor is recording how"
    if seen.failure:
        return "FAILED", f"no process and no exit record; the log says: {seen.failure[:200]}"
    if seen.log_bytes is not None:
        return "STOPPED", "no process and no exit record, but a log: look at it"
    return "UNKNOWN", "no process, no exit record, no log"


def _judge_ended(code: int, missing: Tuple[str, ...]) -> Tuple[str, str]:
    if code != 0:
        signal = f", ended by signal {code - 128}" if code > 128 else ""
        return "FAILED", f"exit code {code}{signal}"
    if missing:
        return "PARTIAL", f"exit code 0, but required outputs are missing: {', '.join(missing)}"
    return "COMPLETED", "exit code 0 and every required output is there"


def _running_reason(seen: Observations) -> str:
    if not seen.process_alive:
        return f"the trainer is gone, {seen.group_alive} of its processes live"
    if _fresh(seen):
        return "live process, fresh log"
    age = f"log silent for {seen.log_age:.0f} s" if seen.log_age is not None else "no log yet"
    if _gpu_busy(seen):
        return f"live process, {age}, GPU busy"
    return f"live process, {age}, GPU idle or absent"


def _fresh(seen: Observations) -> bool:
    """The log or the metrics grew lately. Without any log the start is still young."""
    ages = [age for age in (seen.log_age, seen.progress_age) if age is not None]
    return not ages or min(ages) <= seen.stale_after


def _gpu_busy(seen: Observations) -> bool:
    return seen.gpu_utilization is not None and seen.gpu_utilization > BUSY_UTILIZATION
