"""The rentals table: statuses that may follow, one live lease, money that adds up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from experiment.clock import SystemClock
from experiment.errors import EvidenceMismatch, Fenced, GuardRefused
from experiment.ledger import Ledger, hold
from experiment.money.amounts import Segment
from experiment.paths import Home
from experiment.rentals import Rentals, book


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    opened = Ledger.open(home)
    yield opened
    opened.close()


@pytest.fixture
def rentals(ledger: Ledger) -> Rentals:
    for _ in range(2):
        ledger.create_run("tiny", {}, "a" * 64, "/", "t")
    return Rentals(ledger)


def _intend(rentals: Rentals, name: str = "one", reserved: str = "5") -> str:
    run_id = rentals.ledger.runs()[-1].run_id
    rentals.intend(
        name,
        provider="local",
        job="tiny",
        run_id=run_id,
        currency="CNY",
        rate=Decimal(2),
        reserved=Decimal(reserved),
    )
    return run_id


def test_an_intent_is_written_once(rentals: Rentals) -> None:
    """The same name again changes nothing, whatever it is given."""
    _intend(rentals)
    _intend(rentals, reserved="99")
    assert [r.reserved for r in rentals.all()] == [Decimal(5)]


def test_nothing_is_closed_without_the_provider(rentals: Rentals) -> None:
    """An open rental closes only with a receipt; a never created one needs none."""
    _intend(rentals)
    rentals.record("one", book.OPEN, instance="i-1")
    with pytest.raises(EvidenceMismatch, match="confirmation"):
        rentals.record("one", book.CLOSED)
    assert rentals.record("one", book.CLOSED, receipt={"state": "off"}).status == "closed"
    _intend(rentals, "two")
    assert rentals.record("two", book.CLOSED).status == "closed"


def test_statuses_that_may_not_follow_are_refused(rentals: Rentals) -> None:
    """An intent is never stopped: it was no instance yet."""
    _intend(rentals)
    with pytest.raises(EvidenceMismatch, match="intent -> stopping"):
        rentals.record("one", book.STOPPING)


def test_a_rental_has_one_live_lease(rentals: Rentals) -> None:
    """Another run takes it over only after the first gave it back."""
    first = _intend(rentals)
    second = rentals.ledger.runs()[0].run_id
    assert second != first
    with pytest.raises(EvidenceMismatch, match=first):
        rentals.lease("one", second, Decimal(1))
    rentals.release_lease("one", first)
    rentals.lease("one", second, Decimal(1))
    assert rentals.leased("one") == [second]
    assert rentals.of_run(second).name == "one"


def test_spent_and_reserved(rentals: Rentals) -> None:
    """Open time counts as spent; a live rental's rest is held from the job's others."""
    now = rentals.ledger.clock.now()
    run_id = _intend(rentals)
    segment = Segment(Decimal(2), now - timedelta(hours=2), now - timedelta(hours=1))
    rentals.record("one", book.OPEN, instance="i", segments=[segment])
    assert round(rentals.spent(run_id), 2) == Decimal(2)
    assert rentals.reserved_elsewhere("tiny", "other") == Decimal(3)
    assert rentals.reserved_elsewhere("tiny", "one") == 0
    rentals.record("one", book.CLOSED, receipt={"state": "off"})
    assert rentals.reserved_elsewhere("tiny", "other") == 0


def test_a_fenced_controllers_rentals_are_not_written(rentals: Rentals) -> None:
    """A controller that was replaced changes no rental, neither opens nor closes one."""
    run_id = _intend(rentals)
    with hold(rentals.ledger, "tiny") as lock:
        old = Rentals(rentals.ledger, lock.epoch, "tiny")
        old.record("one", book.OPEN, instance="i")
    hold(rentals.ledger, "tiny").release()
    with pytest.raises(Fenced):
        old.record("one", book.STOPPING)
    with pytest.raises(Fenced):
        old.release_lease("one", run_id)
    assert rentals.get("one").status == book.OPEN


class MovedClock(SystemClock):
    """The machine's clock, moved ahead by a test."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


def test_runs_that_take_a_rental_over_share_its_cost(rentals: Rentals) -> None:
    """Each pays from its take-over to the next one's; together they pay everything, once."""
    clock = MovedClock()
    rentals.ledger.clock = clock
    first = _intend(rentals)
    second = rentals.ledger.runs()[0].run_id
    start = clock.now()
    rentals.record("one", book.OPEN, instance="i", segments=[Segment(Decimal(2), start)])
    clock.ahead = timedelta(hours=1)
    rentals.release_lease("one", first)
    rentals.lease("one", second, Decimal(5))
    clock.ahead = timedelta(hours=3)
    assert round(rentals.spent(first), 2) == Decimal(2)
    assert round(rentals.spent(second), 2) == Decimal(4)
    assert round(rentals.paid(second)[1]) == 7200
    assert round(rentals.get("one").reserved, 2) == Decimal(7)


def test_a_closed_intent_is_opened_again_and_a_closed_rental_is_not(rentals: Rentals) -> None:
    """Never created: the same name may be tried again. Once it was an instance, it stays closed."""
    _intend(rentals)
    rentals.record("one", book.CLOSED)
    _intend(rentals)
    assert rentals.get("one").status == book.INTENT
    rentals.record("one", book.OPEN, instance="i")
    rentals.record("one", book.CLOSED, receipt={"state": "off"})
    _intend(rentals)
    assert rentals.get("one").status == book.CLOSED


def test_an_unconfirmed_stop_can_be_repeated(rentals: Rentals) -> None:
    """The provider did not confirm in time: the next try may send its power-off again."""
    _intend(rentals)
    for status in (book.OPEN, book.STOPPING, book.UNCONFIRMED, book.STOPPING):
        rentals.record("one", status, instance="i")
    assert rentals.record("one", book.CLOSED, receipt={"state": "off"}).status == book.CLOSED


def test_a_cap_is_looked_at_where_the_money_is_reserved(rentals: Rentals) -> None:
    """What the caps forbid leaves no intent behind."""

    def forbid() -> None:
        raise GuardRefused("limit refused", "job tiny")

    with pytest.raises(GuardRefused):
        rentals.intend(
            "one",
            provider="local",
            job="tiny",
            run_id=rentals.ledger.runs()[0].run_id,
            currency="CNY",
            rate=Decimal(1),
            reserved=Decimal(1),
            allowed=forbid,
        )
    assert rentals.all() == []
