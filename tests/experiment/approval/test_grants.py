"""Grants: the first answer counts, within what was asked, for exactly what was shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest

from experiment.approval.grants import Bounds, Grant, Grants
from experiment.errors import ApprovalRefused, GuardRefused
from experiment.ledger import Ledger
from experiment.paths import Home

ASKED = Bounds("CNY", Decimal(2), Decimal(1), Decimal(1), ("1 x any",))
DIGESTS = {"contract": "c" * 64, "bundle": "b" * 64}


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    opened = Ledger.open(home)
    opened.create_run("tiny", {}, "a" * 64, "/", "t")
    yield opened
    opened.close()


def _answer(ledger: Ledger, decision: str = "granted", who: str = "a", bounds=ASKED) -> Grant:
    return Grants(ledger).answer(
        ledger.runs()[0].run_id,
        decision=decision,
        who=who,
        channel="terminal",
        quote="what was shown",
        comment="why",
        bounds=bounds,
        asked=ASKED,
        digests=DIGESTS,
    )


def test_the_first_answer_counts(ledger: Ledger) -> None:
    """A second person gets the first one's answer back, and one answer is in the chain."""
    first = _answer(ledger, who="first")
    assert _answer(ledger, "refused", who="second") == first
    run_id = ledger.runs()[0].run_id
    assert [n["evidence"]["who"] for n in ledger.notes(run_id, "answer")] == ["first"]


@pytest.mark.parametrize(
    "change",
    [
        {"max_price_per_hour": Decimal(3)},
        {"max_total": Decimal("1.01")},
        {"max_hours": Decimal(2)},
        {"currency": "USD"},
    ],
)
def test_an_answer_never_raises_the_bounds(ledger: Ledger, change: dict[str, object]) -> None:
    """What exceeds the plan is refused, and nothing is recorded."""
    with pytest.raises(GuardRefused, match="within"):
        _answer(ledger, bounds=replace(ASKED, **change))
    assert Grants(ledger).current(ledger.runs()[0].run_id, 1) is None


def test_a_grant_is_for_what_was_shown(ledger: Ledger) -> None:
    """Another bundle than the approved one is not covered; which digest differs is said."""
    run_id = ledger.runs()[0].run_id
    with pytest.raises(ApprovalRefused, match="no answer"):
        Grants(ledger).require(run_id, 1, DIGESTS)
    _answer(ledger)
    assert Grants(ledger).require(run_id, 1, DIGESTS).who == "a"
    with pytest.raises(ApprovalRefused, match="bundle"):
        Grants(ledger).require(run_id, 1, {**DIGESTS, "bundle": "d" * 64})


def test_a_refusal_is_no_grant(ledger: Ledger) -> None:
    """Refused: who said so is in the error."""
    _answer(ledger, "refused", who="the boss")
    with pytest.raises(ApprovalRefused, match="the boss"):
        Grants(ledger).require(ledger.runs()[0].run_id, 1, DIGESTS)
