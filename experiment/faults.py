"""Named points that production code passes, where a test may kill or stop the process.

`CHARTER_FAULT=kill:rent.effect` (SIGKILL) or `stop:rent.effect` (SIGSTOP) acts at that point.
`CHARTER_FAULT=@FILE` reads the same words from a file and uses it up, so that a runner's later
processes pass. Without the variable a point costs one dictionary look-up.

The points of a step are `STEP.before` (nothing recorded), `STEP.intent` (intent recorded, effect
not begun), `STEP.effect` (effect happened, not recorded) and `STEP.after` (recorded).
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
    file = Path(wanted[1:]) if wanted.startswith("@") else None
    if file is not None:
        try:
            wanted = file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return
    action, _, where = wanted.partition(":")
    if where != point or action not in _SIGNALS:
        return
    if file is not None:
        file.unlink()
    os.kill(os.getpid(), _SIGNALS[action])
