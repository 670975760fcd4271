"""The two deadlines that go to the host: when training must end, and when the host stops."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.errors import GuardRefused

# Time between the trainer's end and the host's: a checkpoint, then the collection.
MIN_WIND_DOWN_SECONDS = 600


@dataclass(frozen=True)
class Deadlines:
    """Seconds remaining, counted on the host by a clock that also runs while it sleeps."""

    train_until_seconds: int
    stop_at_seconds: int


def deadlines(affordable_seconds: int, wind_down_seconds: int = MIN_WIND_DOWN_SECONDS) -> Deadlines:
    """Split what the money buys into training and winding down.

    Args:
        affordable_seconds: until the host must be off.
        wind_down_seconds: for the last checkpoint and the collection, at least ten minutes.

    Raises:
        GuardRefused: nothing would be left to train in.
    """
    wind_down = max(wind_down_seconds, MIN_WIND_DOWN_SECONDS)
    if affordable_seconds <= wind_down:
        raise GuardRefused(
            "budget refused",
            "billing.max_total",
            expected=f"more than {wind_down // 60} min of paid time, which winding down needs",
            found=f"{affordable_seconds // 60} min",
            hint="raise billing.max_total or billing.max_hours",
        )
    return Deadlines(affordable_seconds - wind_down, affordable_seconds)
