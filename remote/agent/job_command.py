"""Run one of the job's own commands to its end, with a limit, its output in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional

KILL_AFTER_SECONDS = 5.0


class Finished(NamedTuple):
    """exit_code: 128+n for death by signal n; None when the limit was reached."""

    exit_code: Optional[int]
    seconds: float


def run_command(
    argv: List[str], cwd: str, environment: Mapping[str, str], log: Path, timeout_seconds: float
) -> Finished:
    """Run in a process group of its own; stdout and stderr replace what is in `log`.

    At the limit the whole group gets TERM, then KILL.

    Raises:
        OSError: the program can't be started or the log can't be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with open(log, "wb") as output:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: Optional[int] = child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            code = None
        except BaseException:
            _end(child)
            raise
    if code is not None and code < 0:
        code = 128 - code
    return Finished(code, round(time.monotonic() - started, 3))


def output_tail(log: Path, limit: int) -> str:
    """The last `limit` bytes of a log as text."""
    with open(log, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - limit))
        return handle.read().decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The leader is not reaped yet, so that its group can't be another's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_AFTER_SECONDS)
            break
    # Members that outlived their leader.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
