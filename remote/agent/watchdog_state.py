"""The watchdog's memory, `.charter/watchdog.json`: read and changed under one lock.

The state is the only truth: steps change it whether the watchdog lives or not, and a watchdog
started later goes on from it.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import time
from typing import Any, Dict, Iterator, Optional

from remote.agent import clock, watchdog_rules
from remote.agent.errors import evidence_mismatch, guard_refused
from remote.agent.files import read_json, write_json
from remote.agent.layout import Layout
from remote.agent.locks import locked
from remote.agent.process import alive, boot_id, send
from remote.agent.watchdog_rules import Now, State

LOCK_WAIT_SECONDS = 30.0


class Memory:
    """Holds the state while it is being changed; None before the first arming."""

    def __init__(self, state: Optional[State]) -> None:
        self.state = state


def present() -> Now:
    """The moment as the rules want it."""
    return Now(boot_id(), clock.NAME, clock.boot_seconds(), time.time())


def read(layout: Layout) -> Optional[State]:
    """The state as it is, None before the first arming.

    Raises:
        AgentError: evidence_mismatch for a damaged file: nobody knows the deadlines then.
    """
    try:
        state: State = read_json(layout.watchdog)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise evidence_mismatch(
            f"watchdog state is damaged: {error}", "remove the file and arm again"
        ) from None
    return state


@contextlib.contextmanager
def changing(layout: Layout) -> Iterator[Memory]:
    """Read, change, write: what the block leaves in `memory.state` is written when it differs.

    Raises:
        AgentError: busy when another holds the lock for long; evidence_mismatch as `read`.
    """
    with locked(layout.lock("watchdog-state"), LOCK_WAIT_SECONDS, "the watchdog's state"):
        before = read(layout)
        memory = Memory(copy.deepcopy(before))
        yield memory
        if memory.state is not None and memory.state != before:
            write_json(layout.watchdog, memory.state)


def report(layout: Layout) -> Dict[str, Any]:
    """What `status` says: `{armed, alive, …}` with the seconds left (see `watchdog_rules.view`)."""
    state = read(layout)
    if state is None:
        return {"armed": False, "alive": False}
    found = watchdog_rules.view(state, present())
    return dict(found, armed=True, alive=alive(state.get("process")))


def refuse_when_over(layout: Layout) -> None:
    """A launch after the paid training time would be terminated at once.

    Raises:
        AgentError: guard_refused. A host that was never armed is let pass: that is the flow's to
            decide.
    """
    state = read(layout)
    if state is None:
        return
    left = watchdog_rules.view(state, present())
    if left["train_until_seconds"] <= 0:
        raise guard_refused(
            "launch refused: the granted training time is over: expected more than 0 s, "
            f"found 0 s to train and {left['stop_at_seconds']:g} s to the stop",
            "ask for more time (a new grant), then launch again",
        )


def note_launch(layout: Layout) -> None:
    """Tell the watchdog of a new trainer, if one guards the host."""
    with changing(layout) as memory:
        if memory.state is not None:
            memory.state = watchdog_rules.launched(memory.state, present())
            send(memory.state["process"] or {}, signal.SIGUSR1)
