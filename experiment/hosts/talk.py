"""Programs that are kept running on a host and answer a line with a line.

One question at a time per program: a caller takes an idle one, or starts another. What was quiet
for a while is asked for a sign of life before it gets a question, so that a connection that died
meanwhile is noticed before anything was asked.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from experiment.errors import RemoteStepFailed
from experiment.hosts.base import LONGEST_LINE_BYTES, Completed

QUIET_SECONDS = 10.0
SIGN_OF_LIFE_SECONDS = 5.0


class Talk(Protocol):
    """The two ends of one running program; `deadline` is a moment of the monotonic clock.

    Raises (all but `close`):
        TimeoutError: not in time.
        OSError, EOFError: the connection is gone.
    """

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of it to the program's stdin."""

    def receive(self, deadline: float) -> bytes:
        """Some of its stdout; empty at the end."""

    def ended(self, deadline: float) -> Completed:
        """How it ended, after the end of its stdout."""

    def close(self) -> None:
        """Close its stdin and let go."""


class Talks:
    """The programs of one host.

    Args:
        start: starts one, by (argv, deadline).
    """

    def __init__(self, start: Callable[[Sequence[str], float], Talk]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, ...], Talk, float]] = []

    def ask(self, argv: Sequence[str], line: bytes, deadline: float) -> bytes | Completed:
        """
        Raises:
            TimeoutError, OSError, EOFError: as `Talk`.
            RemoteStepFailed: an answer without end.
        """
        talk = self._take(tuple(argv)) or self._start(argv, deadline)
        try:
            answer = _exchange(talk, line, deadline)
        except BaseException:
            talk.close()
            raise
        if isinstance(answer, Completed):
            talk.close()
        else:
            with self._lock:
                self._idle.append((tuple(argv), talk, time.monotonic()))
        return answer

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, talk, _ in idle:
            talk.close()

    def _take(self, argv: tuple[str, ...]) -> Talk | None:
        while True:
            with self._lock:
                found = next((item for item in self._idle if item[0] == argv), None)
                if found is None:
                    return None
                self._idle.remove(found)
            _, talk, since = found
            if time.monotonic() - since < QUIET_SECONDS or _lives(talk):
                return talk
            talk.close()


def _lives(talk: Talk) -> bool:
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        return _exchange(talk, b"", time.monotonic() + SIGN_OF_LIFE_SECONDS) == b""
    return False


def _exchange(talk: Talk, line: bytes, deadline: float) -> bytes | Completed:
    talk.send(line + b"\n", deadline)
    answer = bytearray()
    while not answer.endswith(b"\n"):
        chunk = talk.receive(deadline)
        if not chunk:
            return talk.ended(deadline)
        answer += chunk
        if len(answer) > LONGEST_LINE_BYTES:
            raise RemoteStepFailed(
                "an answer without end",
                "the agent on the host",
                expected=f"a line of at most {LONGEST_LINE_BYTES >> 20} MiB",
                found="more",
                hint="look at what runs there before trusting it again",
            )
    return bytes(answer[:-1])
