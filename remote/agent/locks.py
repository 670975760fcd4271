"""Locks between processes on one host: flock on a file, gone with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Iterator

from remote.agent.errors import busy

POLL_SECONDS = 0.05


@contextlib.contextmanager
def locked(path: Path, wait_seconds: float, what: str) -> Iterator[None]:
    """Hold the lock file `path`; the holder's pid is in it while it is held.

    The kernel drops the lock when the holder dies, so that a crash leaves nothing locked. The
    descriptor is not inherited by programs that the holder starts.

    Args:
        path: the lock file; created when missing, never removed (removal would let two hold it).
        wait_seconds: how long to wait for another holder.
        what: names the lock in the error.

    Raises:
        AgentError: kind busy, when another process held it all that time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(descriptor, wait_seconds, what)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, wait_seconds: float, what: str) -> None:
    give_up_at = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace") or "unknown"
                raise busy(
                    f"{what} is held by another process: pid {holder}, waited {wait_seconds:g} s",
                    "wait for it to finish, or end that process",
                ) from None
            time.sleep(POLL_SECONDS)
