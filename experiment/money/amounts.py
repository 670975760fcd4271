"""Amounts and paid time. Nothing here is a float: money is Decimal, rounded up against us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from experiment.clock import iso, parse_iso

CENT = Decimal("0.01")
_HOUR = Decimal(3600)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Segment:
    """One stretch of paid time.

    Args:
        rate: money per hour.
        start: when billing began.
        stop: when the provider confirmed the end; None while open. Unconfirmed time is billed.
    """

    rate: Decimal
    start: datetime
    stop: datetime | None = None

    def seconds(self, now: datetime) -> Decimal:
        """Paid seconds up to `now`."""
        end = self.stop or now
        passed = max(end - self.start, timedelta(0))
        return Decimal(passed // _MICROSECOND) / Decimal(1_000_000)

    def cost(self, now: datetime) -> Decimal:
        """Money up to `now`, unrounded."""
        return self.rate * self.seconds(now) / _HOUR

    def within(self, begin: datetime | None, end: datetime | None) -> Segment:
        """The part of it inside a window; an empty one where they do not meet."""
        start = self.start if begin is None else max(self.start, begin)
        ends = [moment for moment in (self.stop, end) if moment is not None]
        stop = min(ends) if ends else None
        return Segment(self.rate, start, stop if stop is None else max(stop, start))

    def as_json(self) -> dict[str, Any]:
        return {
            "rate": str(self.rate),
            "start": iso(self.start),
            "stop": iso(self.stop) if self.stop else None,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Segment:
        stop = body["stop"]
        return cls(
            Decimal(body["rate"]), parse_iso(body["start"]), parse_iso(stop) if stop else None
        )


def total(segments: Iterable[Segment], now: datetime) -> Decimal:
    """The cost of all segments, unrounded."""
    return sum((segment.cost(now) for segment in segments), Decimal(0))


def shown(amount: Decimal) -> str:
    """An amount for people and JSON: two places, rounded up, so that it never understates."""
    return str(amount.quantize(CENT, rounding=ROUND_CEILING))


def worst_case(max_total: Decimal, max_hours: Decimal, rate: Decimal) -> tuple[Decimal, Decimal]:
    """The most that a run can cost, and the hours which that buys.

    Args:
        max_total: cap on the run's money.
        max_hours: cap on its paid hours.
        rate: the highest approved price per hour.

    Returns:
        (amount, hours): amount = min(max_total, max_hours x rate); hours = amount / rate, or
        max_hours where the host costs nothing.
    """
    if rate == 0:
        return Decimal(0), max_hours
    amount = min(max_total, max_hours * rate)
    return amount, amount / rate


def affordable_seconds(
    cap: Decimal, spent: Decimal, reserved: Decimal, rate: Decimal, max_hours: Decimal
) -> int:
    """Whole seconds until the money or the hours run out, never negative.

    deadline = (cap - spent - other open reservations) / rate, inside max_hours.

    Args:
        cap: the approved total.
        spent: already spent by the run.
        reserved: held by other open rentals of the job.
        rate: money per hour of this host.
        max_hours: hours still allowed.
    """
    by_hours = max(max_hours, Decimal(0)) * _HOUR
    if rate > 0:
        left = max(cap - spent - reserved, Decimal(0))
        by_hours = min(by_hours, left / rate * _HOUR)
    return int(by_hours.to_integral_value(rounding=ROUND_FLOOR))
