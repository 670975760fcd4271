"""Time as an argument, so that tests move it instead of waiting for it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for the record, monotonic time for durations, and waiting."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds and `Z`, the one form in ledger and JSON.

    Raises:
        ValueError: the moment has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a moment without a time zone cannot be recorded: {moment!r}")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_iso(text: str) -> datetime:
    """The moment that `iso` wrote (any ISO 8601 form with a zone is taken).

    Raises:
        ValueError: no ISO 8601 moment, or one without a zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"expected an ISO 8601 moment with a time zone, found {text!r}")
    return moment.astimezone(UTC)
