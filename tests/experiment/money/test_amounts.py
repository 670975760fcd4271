"""Paid time and what it costs: nothing is lost by rounding, nothing is understated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.errors import CharterError, GuardRefused
from experiment.money.amounts import Segment, affordable_seconds, shown, total, worst_case
from experiment.money.deadlines import deadlines
from experiment.money.limits import Limits, load_limits

START = datetime(2026, 1, 1, tzinfo=UTC)
amounts = st.decimals(min_value=0, max_value=10**6, places=3, allow_nan=False)


@given(rate=amounts, seconds=st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_segments_add_up_like_one_stretch(rate: Decimal, seconds: list[int]) -> None:
    """Splitting paid time into segments changes its cost by nothing."""
    moments = [START]
    for length in seconds:
        moments.append(moments[-1] + timedelta(seconds=length))
    split = [Segment(rate, a, b) for a, b in pairwise(moments)]
    whole = Segment(rate, START, moments[-1]).cost(moments[-1])
    assert abs(total(split, moments[-1]) - whole) < Decimal("1e-12")


@given(cap=amounts, spent=amounts, reserved=amounts, rate=amounts, hours=amounts)
def test_a_deadline_never_buys_more_than_the_cap(
    cap: Decimal, spent: Decimal, reserved: Decimal, rate: Decimal, hours: Decimal
) -> None:
    """What the seconds cost stays within cap - spent - reserved, and inside the hours."""
    seconds = affordable_seconds(cap, spent, reserved, rate, hours)
    assert seconds >= 0
    assert seconds <= hours * 3600
    cost = rate * seconds / 3600
    assert cost <= max(cap - spent - reserved, Decimal(0)) + Decimal("1e-12")


@pytest.mark.parametrize(
    ("max_total", "max_hours", "rate", "amount", "hours"),
    [
        ("10", "2", "3", "6", "2"),
        ("4", "2", "3", "4", "1.333"),
        ("10", "2", "0", "0", "2"),
    ],
)
def test_worst_case(max_total: str, max_hours: str, rate: str, amount: str, hours: str) -> None:
    """The smaller of total cap and hours x rate, and the hours that it buys."""
    found = worst_case(Decimal(max_total), Decimal(max_hours), Decimal(rate))
    assert (found[0], round(found[1], 3)) == (Decimal(amount), Decimal(hours))


def test_open_time_is_billed_and_shown_rounded_up() -> None:
    """An open segment counts to now; a fraction of a cent is shown as a cent."""
    assert shown(Segment(Decimal("1"), START).cost(START + timedelta(seconds=1))) == "0.01"


def test_a_budget_too_small_to_wind_down_is_refused() -> None:
    """Less than ten minutes of paid time leaves nothing to train in."""
    with pytest.raises(GuardRefused, match=r"billing\.max_total"):
        deadlines(600)
    assert deadlines(1800).train_until_seconds == 1200


def test_limits_cap_what_a_contract_asks(tmp_path) -> None:
    """limits.yaml refuses more than is left per job or day, another currency, and unknown keys."""
    path = tmp_path / "limits.yaml"
    path.write_text("currency: CNY\nmax_per_job: 10\nmax_per_day: 20\n")
    limits = load_limits(path)
    ask = {"job": "j", "currency": "CNY", "asked": Decimal(4)}
    limits.check(**ask, job_spent=Decimal(6), day_spent=Decimal(6))
    with pytest.raises(GuardRefused, match="max_per_job"):
        limits.check(**ask, job_spent=Decimal(7), day_spent=Decimal(7))
    with pytest.raises(GuardRefused, match="max_per_day"):
        limits.check(**ask, job_spent=Decimal(0), day_spent=Decimal(17))
    with pytest.raises(GuardRefused, match="USD"):
        limits.check(**{**ask, "currency": "USD"}, job_spent=Decimal(0), day_spent=Decimal(0))
    assert load_limits(tmp_path / "none.yaml") == Limits()
    wrong = ("max_per_week: 3", "max_per_job: true", "max_per_job: -1", "- 1", "a: [")
    for text in wrong:
        path.write_text(text)
        with pytest.raises(CharterError, match=r"limits\.yaml"):
            load_limits(path)
