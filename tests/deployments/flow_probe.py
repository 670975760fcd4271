"""Two small real flows, served in place of Charter's own by the server's tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prefect import flow


@flow
def leave_mark(folder: str, seconds: float = 0.0) -> str:
    """Write this process's pid and Charter home into a folder, then work for a while."""
    (Path(folder) / "mark").write_text(f"{os.getpid()} {os.environ['CHARTER_HOME']}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
    return "done"


@flow
def sweep() -> None:
    """Do nothing; registered with a schedule, a limit and a trigger."""
