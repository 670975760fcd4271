"""The rentals table: from the intent to rent to the provider's confirmation that it is off.

    intent -> open -> stopping -> closed
       |        |         \\-> stopped_unconfirmed
       \\-> closed (never created)      unknown: the provider does not say

Unknown and unconfirmed count as billing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from experiment.clock import iso, parse_iso
from experiment.errors import EvidenceMismatch, NotFound
from experiment.ledger import schema
from experiment.ledger.database import one_at_a_time
from experiment.ledger.ledger import Ledger, require_epoch
from experiment.money.amounts import Segment, total
from remote.agent.files import canonical_json

INTENT = "intent"
OPEN = "open"
STOPPING = "stopping"
CLOSED = "closed"
UNCONFIRMED = "stopped_unconfirmed"
UNKNOWN = "unknown"

LIVE = (INTENT, OPEN, STOPPING, UNKNOWN, UNCONFIRMED)

_FOLLOWERS = {
    INTENT: {OPEN, UNKNOWN, CLOSED},
    OPEN: {OPEN, STOPPING, UNKNOWN, CLOSED},
    STOPPING: {STOPPING, OPEN, CLOSED, UNCONFIRMED, UNKNOWN},
    UNCONFIRMED: {STOPPING, CLOSED, UNKNOWN},
    UNKNOWN: {OPEN, STOPPING, CLOSED, UNKNOWN, UNCONFIRMED},
    CLOSED: set(),
}


@dataclass(frozen=True)
class Rental:
    """One instance's paid time. `reserved` is what its run may still make it cost, in all."""

    name: str
    provider: str
    instance: str | None
    job: str
    run_id: str
    status: str
    kept: bool
    rate: Decimal
    currency: str
    reserved: Decimal
    segments: tuple[Segment, ...]
    detail: dict[str, Any]
    receipt: dict[str, Any] | None
    opened_at: str

    def cost(self, now: datetime) -> Decimal:
        return total(self.segments, now)


class Rentals:
    """The rentals of a ledger.

    Args:
        epoch, job: of the lock that a controller holds: its writes are then fenced like its
            entries. 0 for the sweep and for a person's order, which hold no job.

    Raises (all writes):
        Fenced: another controller holds the job now.
    """

    def __init__(self, ledger: Ledger, epoch: int = 0, job: str = "") -> None:
        self.ledger = ledger
        self.epoch = epoch
        self.job = job

    def get(self, name: str) -> Rental:
        """
        Raises:
            NotFound: no such rental.
        """
        with self.ledger.database.read() as connection:
            row = _row(connection, name)
        if row is None:
            raise NotFound("no such rental", name, hint="charter rentals", exit_code=1)
        return _as_rental(row)

    def all(self) -> list[Rental]:
        """Every rental, oldest first."""
        query = sa.select(schema.rentals).order_by(schema.rentals.c.opened_at)
        with self.ledger.database.read() as connection:
            return [_as_rental(row) for row in connection.execute(query).mappings()]

    def live(self) -> list[Rental]:
        """Those that may be billing."""
        return [rental for rental in self.all() if rental.status in LIVE]

    def of_run(self, run_id: str) -> Rental | None:
        """The rental that the run holds, or held last."""
        query = (
            sa.select(schema.leases.c.rental)
            .where(schema.leases.c.run_id == run_id)
            .order_by(schema.leases.c.taken_at.desc())
            .limit(1)
        )
        with self.ledger.database.read() as connection:
            name = connection.execute(query).scalar_one_or_none()
        return None if name is None else self.get(name)

    def of_job_held(self, job: str) -> Rental | None:
        """A host of the job that is held for its next run."""
        for rental in self.live():
            if rental.job == job and rental.status == OPEN:
                return rental
        return None

    def intend(
        self,
        name: str,
        *,
        provider: str,
        job: str,
        run_id: str,
        currency: str,
        rate: Decimal,
        reserved: Decimal,
        allowed: Callable[[], None] = lambda: None,
    ) -> Rental:
        """Write the intent to rent, once per name, and the run's lease on it.

        An intent that was closed as never created is opened again.

        Args:
            allowed: raises where a cap forbids it; called while nobody else can reserve.
        """
        now = iso(self.ledger.clock.now())
        with self._writing() as connection:
            one_at_a_time(connection)
            found = _row(connection, name)
            if found is None or (found["status"] == CLOSED and found["instance"] is None):
                allowed()
            if found is not None and found["status"] == CLOSED and found["instance"] is None:
                connection.execute(
                    schema.rentals.update()
                    .where(schema.rentals.c.name == name)
                    .values(status=INTENT, kept=True, opened_at=now)
                )
            if found is None:
                connection.execute(
                    schema.rentals.insert().values(
                        name=name,
                        provider=provider,
                        instance=None,
                        job=job,
                        run_id=run_id,
                        status=INTENT,
                        kept=True,
                        rate=str(rate),
                        currency=currency,
                        reserved=str(reserved),
                        segments="[]",
                        detail="{}",
                        receipt=None,
                        opened_at=now,
                    )
                )
                _lease(connection, name, run_id, now)
        return self.get(name)

    def lease(self, name: str, run_id: str, may_cost: Decimal) -> None:
        """Another run takes the rental over (reuse). A live lease is only ever one.

        Args:
            may_cost: what the run may still make it cost, beside what it has cost already.
        """
        now = self.ledger.clock.now()
        with self._writing() as connection:
            row = _row(connection, name, hold=True)
            holders = _lease_holders(connection, name)
            if holders == [run_id]:
                return
            if holders:
                raise EvidenceMismatch(
                    "reuse refused", name, expected="no live lease", found=f"run {holders[0]}"
                )
            if row is None:
                raise NotFound("no such rental", name, hint="charter rentals", exit_code=1)
            _lease(connection, name, run_id, iso(now))
            reserved = _as_rental(row).cost(now) + may_cost
            connection.execute(
                schema.rentals.update()
                .where(schema.rentals.c.name == name)
                .values(run_id=run_id, reserved=str(reserved))
            )

    def release_lease(self, name: str, run_id: str) -> None:
        with self._writing() as connection:
            connection.execute(
                schema.leases.update()
                .where(
                    schema.leases.c.rental == name,
                    schema.leases.c.run_id == run_id,
                    schema.leases.c.released_at.is_(None),
                )
                .values(released_at=iso(self.ledger.clock.now()))
            )

    def leased(self, name: str) -> list[str]:
        """The runs that hold it now."""
        with self.ledger.database.read() as connection:
            return _lease_holders(connection, name)

    def record(
        self,
        name: str,
        status: str,
        *,
        instance: str | None = None,
        rate: Decimal | None = None,
        segments: Iterable[Segment] | None = None,
        detail: Mapping[str, Any] | None = None,
        receipt: Mapping[str, Any] | None = None,
        kept: bool | None = None,
        reserved: Decimal | None = None,
    ) -> Rental:
        """Write what is now known of a rental; what is not given stays.

        Raises:
            EvidenceMismatch: the status may not follow, or a close has no receipt.
        """
        values: dict[str, Any] = {"status": status}
        if instance is not None:
            values["instance"] = instance
        if rate is not None:
            values["rate"] = str(rate)
        if segments is not None:
            values["segments"] = canonical_json([s.as_json() for s in segments]).decode()
        if detail is not None:
            values["detail"] = canonical_json(detail).decode()
        if receipt is not None:
            values["receipt"] = canonical_json(receipt).decode()
        if kept is not None:
            values["kept"] = kept
        if reserved is not None:
            values["reserved"] = str(reserved)
        with self._writing() as connection:
            row = _row(connection, name, hold=True)
            if row is None:
                raise NotFound("no such rental", name, hint="charter rentals", exit_code=1)
            _check(name, row["status"], status, receipt is not None or row["receipt"] is not None)
            connection.execute(
                schema.rentals.update().where(schema.rentals.c.name == name).values(values)
            )
        return self.get(name)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.ledger.database.write() as connection:
            if self.epoch:
                require_epoch(connection, self.job, self.epoch)
            yield connection

    def paid(self, run_id: str) -> tuple[Decimal, Decimal]:
        """What a run has cost and its paid seconds, over every rental that it held.

        A rental that runs took over from each other is shared out by their leases: from the
        beginning or the take-over until the next one's.
        """
        now = self.ledger.clock.now()
        amount = seconds = Decimal(0)
        for rental in self.all():
            windows = self._windows(rental.name)
            for begin, end in (window[1:] for window in windows if window[0] == run_id):
                for segment in rental.segments:
                    part = segment.within(begin, end)
                    amount += part.cost(now)
                    seconds += part.seconds(now)
        return amount, seconds

    def spent(self, run_id: str) -> Decimal:
        """Money that a run has cost so far; open time counts up to now."""
        return self.paid(run_id)[0]

    def spent_by_job(self, job: str, currency: str) -> Decimal:
        """Money that all runs of a job have cost, and may still cost where they hold a host."""
        now = self.ledger.clock.now()
        return sum(
            (
                max(rental.reserved if rental.status in LIVE else Decimal(0), rental.cost(now))
                for rental in self.all()
                if rental.job == job and rental.currency == currency
            ),
            Decimal(0),
        )

    def committed(self, day: str, currency: str) -> Decimal:
        """What live rentals may still cost (their reservations) and what the day has cost."""
        now = self.ledger.clock.now()
        amount = Decimal(0)
        for rental in self.all():
            if rental.currency != currency:
                continue
            if rental.status in LIVE:
                amount += max(rental.reserved, rental.cost(now))
            elif rental.opened_at.startswith(day):
                amount += rental.cost(now)
        return amount

    def reserved_elsewhere(self, job: str, name: str) -> Decimal:
        """What the job's other live rentals may still cost."""
        now = self.ledger.clock.now()
        return sum(
            (
                max(rental.reserved - rental.cost(now), Decimal(0))
                for rental in self.live()
                if rental.job == job and rental.name != name
            ),
            Decimal(0),
        )

    def _windows(self, name: str) -> list[tuple[str, datetime | None, datetime | None]]:
        """(run, from, until) of each lease in order; None: from the beginning, until the end."""
        query = (
            sa.select(schema.leases.c.run_id, schema.leases.c.taken_at)
            .where(schema.leases.c.rental == name)
            .order_by(schema.leases.c.taken_at)
        )
        with self.ledger.database.read() as connection:
            rows = connection.execute(query).all()
        taken = [parse_iso(row.taken_at) for row in rows]
        return [
            (
                str(row.run_id),
                taken[index] if index else None,
                taken[index + 1] if index + 1 < len(taken) else None,
            )
            for index, row in enumerate(rows)
        ]


def _check(name: str, found: str, to: str, has_receipt: bool) -> None:
    if to != found and to not in _FOLLOWERS[found]:
        raise EvidenceMismatch(
            "rental refused",
            f"{name}, {found} -> {to}",
            expected="one of " + ", ".join(sorted(_FOLLOWERS[found])),
            found=to,
        )
    if to == CLOSED and found != INTENT and not has_receipt:
        raise EvidenceMismatch(
            "rental refused",
            f"{name}, {found} -> {to}",
            expected="the provider's confirmation that it is off",
            found="no receipt",
        )


def _lease(connection: Connection, name: str, run_id: str, now: str) -> None:
    connection.execute(
        schema.leases.insert().values(rental=name, run_id=run_id, taken_at=now, released_at=None)
    )


def _lease_holders(connection: Connection, name: str) -> list[str]:
    query = sa.select(schema.leases.c.run_id).where(
        schema.leases.c.rental == name, schema.leases.c.released_at.is_(None)
    )
    return [str(run) for run in connection.execute(query).scalars()]


def _row(connection: Connection, name: str, *, hold: bool = False) -> RowMapping | None:
    query = sa.select(schema.rentals).where(schema.rentals.c.name == name)
    if hold:
        query = query.with_for_update()
    return connection.execute(query).mappings().first()


def _as_rental(row: RowMapping) -> Rental:
    return Rental(
        name=row["name"],
        provider=row["provider"],
        instance=row["instance"],
        job=row["job"],
        run_id=row["run_id"],
        status=row["status"],
        kept=bool(row["kept"]),
        rate=Decimal(row["rate"]),
        currency=row["currency"],
        reserved=Decimal(row["reserved"]),
        segments=tuple(Segment.from_json(body) for body in json.loads(row["segments"])),
        detail=json.loads(row["detail"]),
        receipt=json.loads(row["receipt"]) if row["receipt"] else None,
        opened_at=row["opened_at"],
    )
