"""Whether a step of the agent runs on this host: it counts as contact for the watchdog.

Every step that works holds one lock file, shared; the kernel lets go of it when the step dies.
Questions that a sweep asks every few minutes don't hold it: they would keep a forgotten host up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator

from remote.agent.layout import Layout

QUIET_STEPS = ("hello", "status", "logs", "contact")


@contextlib.contextmanager
def working(step: str, layout: Layout) -> Iterator[None]:
    """While the block runs, `step_running` is true for the data root, unless the step is quiet."""
    if step in QUIET_STEPS or not layout.charter.is_dir():
        yield
        return
    path = layout.lock("working")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def step_running(layout: Layout) -> bool:
    """Whether some step of the agent works on this data root at this moment."""
    try:
        descriptor = os.open(str(layout.lock("working")), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
