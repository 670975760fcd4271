"""Named points that production code passes, where a test may kill or stop the process.

`CHARTER_FAULT=kill:rent.effect` (SIGKILL) or `stop:rent.effect` (SIGSTOP) acts at that point once;
the marker file named by `CHARTER_FAULT_ONCE` keeps a second process from doing it again. Without
the variable a point costs one dictionary look-up. The points of a step are `STEP.before` (nothing
recorded), `STEP.intent` (intent recorded, effect not begun), `STEP.effect` (effect happened, not
recorded) and `STEP.after` (recorded).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def reached(point: str) -> None:
    """Pass the point, unless a test asked for an end here."""
    wanted = os.environ.get("CHARTER_FAULT")
    if not wanted:
        return
    action, _, where = wanted.partition(":")
    if where != point or action not in _SIGNALS:
        return
    marker = os.environ.get("CHARTER_FAULT_ONCE")
    if marker:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return
    os.kill(os.getpid(), _SIGNALS[action])
