"""When a host must be stopped: pure functions from a state, what is seen and the time to actions.

Nothing here reads a clock, a file or a process. Times in a state are seconds on the boot clock
(`clock.py`), valid within one boot; `mark` ties them to wall time, so that after a reboot the
deadlines can be carried over.

    train_until   every launch gets TERM once, and the time to stop_at to save a checkpoint
    stop_at       KILL what still trains, then the stop command, again and again
    idle          no trainer since the arming, and no contact for idle_seconds (with a lease: for
                  the longer of idle and collect grace)
    collect grace a trainer has ended, and no contact for collect_grace_seconds

Contact is the step `contact`, any working step of the agent, or an interactive SSH session. It
never moves a deadline. Later deadlines need a grant that was not seen before.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from remote.agent.errors import usage

State = Dict[str, Any]

DEFAULTS = {
    "idle_seconds": 900.0,
    "collect_grace_seconds": 1800.0,
    "poll_seconds": 5.0,
    "persist_seconds": 60.0,
    "term_grace_seconds": 120.0,
    "stop_retry_seconds": 30.0,
}
# Whose SSH sessions count: everybody's on the host, or only those that carry the data root's tag
# (where the host shares its machine with others, as provider `local` does).
SESSION_SCOPES = ("any", "tagged")
# On the boot clock; they move together when the clock starts anew.
MOMENTS = (
    "train_until",
    "stop_at",
    "last_contact",
    "last_busy",
    "trainer_ended",
)


class Now(NamedTuple):
    """The present: which boot, which clock, its seconds, and the wall's seconds since 1970."""

    boot_id: str
    clock: str
    seconds: float
    utc: float


class Seen(NamedTuple):
    """What goes on at the host: request ids of living launches, and who is about."""

    launches: Tuple[str, ...] = ()
    step_running: bool = False
    ssh_session: bool = False


class Action(NamedTuple):
    """`term` or `kill` with a launch's request id, or `stop` with the reason."""

    kind: str
    about: str


def arm(state: Optional[State], request: Mapping[str, Any], now: Now) -> Tuple[State, bool]:
    """The state after a request to guard the host, and whether later deadlines were refused.

    An armed host keeps its deadlines unless the grant is new: arming again with a grant that was
    seen can only bring them nearer.

    Args:
        request: `train_until_seconds`, `stop_at_seconds` (from now), `stop_argv`, `grant`, and
            the settings of `DEFAULTS`; `off_seconds`: time that the provider confirms the host
            was off since the last mark, which a reboot does not count; `sessions`: any or tagged.

    Raises:
        AgentError: usage, naming the field.
    """
    settings = {name: _seconds(request, name, value) for name, value in DEFAULTS.items()}
    argv = request.get("stop_argv")
    if not isinstance(argv, list) or not all(isinstance(part, str) for part in argv):
        raise usage(f"watchdog.stop_argv: expected a list of texts, found {argv!r}")
    if state is None:
        after = _unarmed(now)
    else:
        after = carry_over(state, now, _seconds(request, "off_seconds", 0.0))
    sessions = request.get("sessions", "any")
    if sessions not in SESSION_SCOPES:
        raise usage(f"watchdog.sessions: expected one of {SESSION_SCOPES}, found {sessions!r}")
    after.update(settings)
    after["sessions"] = sessions
    after["stop_argv"] = list(argv)
    after["stopping"] = None
    after["armed"] += 1
    refused = set_deadlines(after, request, now)
    after["last_contact"] = now.seconds
    return after, refused


def contact(state: State, request: Mapping[str, Any], now: Now) -> Tuple[State, bool]:
    """The state after a sign of life, and whether later deadlines were refused.

    Args:
        request: optional `lease` ({"run_id"} or None), `deadlines` ({train_until_seconds,
            stop_at_seconds, grant}), `release` (ends the lease and the collect phase).

    Raises:
        AgentError: usage, naming the field.
    """
    after = carry_over(state, now)
    after["last_contact"] = now.seconds
    if "lease" in request:
        lease = request["lease"]
        if lease is not None and not (isinstance(lease, dict) and lease.get("run_id")):
            raise usage(f'lease: expected {{"run_id"}} or null, found {lease!r}')
        after["lease"] = lease
    if request.get("release"):
        after["lease"] = None
        after["trainer_seen"] = False
        after["trainer_ended"] = None
    deadlines = request.get("deadlines")
    refused = set_deadlines(after, deadlines, now) if deadlines else False
    return after, refused


def launched(state: State, now: Now) -> State:
    """The state after a launch: a trainer may end before the next look, and its results wait."""
    after = carry_over(state, now)
    after["last_contact"] = now.seconds
    after["trainer_seen"] = True
    after["trainer_ended"] = None
    return after


def set_deadlines(state: State, request: Mapping[str, Any], now: Now) -> bool:
    """Put the asked deadlines into the state; true when a later one was refused.

    `train_until` always leaves `term_grace_seconds` before `stop_at` for a checkpoint.
    """
    grant = request.get("grant")
    fresh = isinstance(grant, str) and bool(grant) and grant not in state["grants"]
    refused = False
    for name in ("train_until", "stop_at"):
        wanted = now.seconds + _seconds(request, f"{name}_seconds", None)
        known = state[name]
        if known is None or fresh or wanted <= known:
            state[name] = wanted
        else:
            # The same grant measured again a moment later is no wish for more time.
            refused = refused or wanted > known + 1.0
    if fresh:
        state["grants"] = [*state["grants"], grant]
    latest = max(now.seconds, state["stop_at"] - state["term_grace_seconds"])
    state["train_until"] = min(state["train_until"], latest)
    return refused


def carry_over(state: State, now: Now, off_seconds: float = 0.0) -> State:
    """The state on the present boot's clock, marked with the present moment.

    After a reboot every moment moves by the time since the last mark, as the wall tells it, less
    the time that was explained. When the wall went backwards nobody knows how long the host was
    away: the deadlines count as passed.
    """
    after = copy.deepcopy(state)
    mark = after["mark"]
    if not same_clock(after, now):
        gap = now.utc - mark["utc"]
        trusted = gap >= 0
        gap = max(0.0, gap - off_seconds)
        shift = now.seconds - mark["seconds"] - gap
        for name in MOMENTS:
            if after[name] is not None:
                after[name] += shift
        if not trusted:
            after["train_until"] = min(after["train_until"], now.seconds)
            after["stop_at"] = min(after["stop_at"], now.seconds)
        after["reboots"] += 1
        after["stopping"] = None
    after["mark"] = now._asdict()
    return after


def same_clock(state: State, now: Now) -> bool:
    """Whether the state's moments are on the present boot's clock."""
    return bool(state["mark"]["boot_id"] == now.boot_id and state["mark"]["clock"] == now.clock)


def decide(state: State, seen: Seen, now: Now) -> Tuple[State, List[Action]]:
    """What the watchdog remembers and does after one look at the host."""
    after = copy.deepcopy(state) if same_clock(state, now) else carry_over(state, now)
    _remember(after, seen, now)
    reason = stop_reason(after, seen, now)
    if reason is None:
        after["stopping"] = None
        actions = _terminations(after, seen, now)
    else:
        actions = _stopping(after, reason, seen, now)
    if after != state or now.seconds - after["mark"]["seconds"] >= after["persist_seconds"]:
        after["mark"] = now._asdict()
    return after, actions


def _stopping(after: State, reason: str, seen: Seen, now: Now) -> List[Action]:
    if after["stopping"] is None or after["stopping"]["reason"] != reason:
        after["stopping"] = {
            "reason": reason,
            "since_utc": now.utc,
            "attempts": 0,
            "next_attempt": now.seconds,
            "unavailable": not after["stop_argv"],
            "last": None,
        }
    actions = [Action("kill", launch) for launch in seen.launches]
    if now.seconds >= after["stopping"]["next_attempt"]:
        after["stopping"]["attempts"] += 1
        after["stopping"]["next_attempt"] = now.seconds + after["stop_retry_seconds"]
        actions.append(Action("stop", reason))
    return actions


def stop_reason(state: State, seen: Seen, now: Now) -> Optional[str]:
    """`stop_at`, `collect_grace`, `idle`, or None while the host may run."""
    if now.seconds >= state["stop_at"]:
        return "stop_at"
    if seen.launches:
        return None
    if state["trainer_seen"]:
        left = collect_left(state, now)
        return "collect_grace" if left <= 0 else None
    return "idle" if idle_left(state, now) <= 0 else None


def idle_left(state: State, now: Now) -> float:
    """Seconds until an unused host counts as forgotten."""
    limit = float(state["idle_seconds"])
    if state["lease"] is not None:
        # A lease counts as contact, but one whose holder is never heard of again lapses.
        limit = max(limit, float(state["collect_grace_seconds"]))
    return limit - (now.seconds - float(max(state["last_contact"], state["last_busy"])))


def collect_left(state: State, now: Now) -> float:
    """Seconds that results still wait for somebody to fetch them."""
    since = float(max(state["last_contact"], state["trainer_ended"] or state["last_busy"]))
    return float(state["collect_grace_seconds"]) - (now.seconds - since)


def view(state: State, now: Now) -> Dict[str, Any]:
    """The state as others are told it: seconds left, never below zero."""
    here = carry_over(state, now)
    return {
        "train_until_seconds": _left(here["train_until"], now),
        "stop_at_seconds": _left(here["stop_at"], now),
        "idle_left_seconds": round(max(0.0, idle_left(here, now)), 3),
        "collect_left_seconds": round(max(0.0, collect_left(here, now)), 3)
        if here["trainer_seen"]
        else None,
        "lease": here["lease"],
        "stopping": here["stopping"],
        "stop_available": bool(here["stop_argv"]),
    }


def _unarmed(now: Now) -> State:
    return {
        "schema_version": 1,
        "mark": now._asdict(),
        "train_until": None,
        "stop_at": None,
        "grants": [],
        "last_contact": now.seconds,
        "last_busy": now.seconds,
        "lease": None,
        "trainer_seen": False,
        "trainer_ended": None,
        "armed": 0,
        "acknowledged": 0,
        "process": None,
        "self_check": None,
        "terminated": [],
        "stopping": None,
        "reboots": 0,
    }


def _remember(state: State, seen: Seen, now: Now) -> None:
    if seen.launches:
        state["trainer_seen"] = True
        state["trainer_ended"] = None
        state["last_busy"] = _renewed(state["last_busy"], state, now)
    elif state["trainer_seen"] and state["trainer_ended"] is None:
        state["trainer_ended"] = now.seconds
    if seen.step_running or seen.ssh_session:
        state["last_contact"] = _renewed(state["last_contact"], state, now)


def _renewed(moment: float, state: State, now: Now) -> float:
    """Now, unless the moment is fresh enough: not every look is worth a write to the disk."""
    fresh = min(15.0, state["idle_seconds"] / 10, state["collect_grace_seconds"] / 10)
    return now.seconds if now.seconds - moment >= fresh else moment


def _terminations(state: State, seen: Seen, now: Now) -> List[Action]:
    """TERM once per launch: a second one makes many programs drop the checkpoint they write."""
    if now.seconds < state["train_until"]:
        return []
    due = [launch for launch in seen.launches if launch not in state["terminated"]]
    state["terminated"] = [*state["terminated"], *due]
    return [Action("term", launch) for launch in due]


def _left(moment: float, now: Now) -> float:
    return round(max(0.0, moment - now.seconds), 3)


def _seconds(request: Mapping[str, Any], name: str, default: Optional[float]) -> float:
    value = request.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise usage(f"watchdog.{name}: expected seconds, found {value!r}")
    if not math.isfinite(value) or value < 0:
        raise usage(f"watchdog.{name}: expected seconds from 0, found {value!r}")
    return float(value)
