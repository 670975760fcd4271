"""Which state may follow which, and what it must carry."""

from __future__ import annotations

import pytest

from experiment.errors import IllegalTransition
from experiment.ledger import states

FULL = {
    state: dict.fromkeys(keys, "x") | {"order": "somebody"}
    for state, keys in states.EVIDENCE.items()
}

ALL = [None, *states.EVIDENCE]

# The table of the requirements, by hand: what the code must agree with.
LEGAL = {
    (None, "PLANNED"),
    ("PLANNED", "PREPARED"),
    ("PREPARED", "RENTED"),
    ("RENTED", "UPLOADED"),
    ("UPLOADED", "BOOTSTRAPPING"),
    ("BOOTSTRAPPING", "RUNNING"),
    ("RUNNING", "PARTIAL"),
    ("RUNNING", "COMPLETED"),
    ("PARTIAL", "RUNNING"),
    ("PARTIAL", "COMPLETED"),
    ("PARTIAL", "COLLECTED"),
    ("COMPLETED", "COLLECTED"),
    ("COMPLETED", "PARTIAL"),
    ("COLLECTED", "COLLECTED"),
    ("COLLECTED", "VERIFIED"),
    ("VERIFIED", "SHUTDOWN"),
    ("FAILED", "PREPARED"),
    ("FAILED", "COLLECTED"),
    ("FAILED", "SHUTDOWN"),
} | {
    (state, "FAILED")
    for state in (
        "PLANNED",
        "PREPARED",
        "RENTED",
        "UPLOADED",
        "BOOTSTRAPPING",
        "RUNNING",
        "PARTIAL",
        "COMPLETED",
        "COLLECTED",
    )
}


def _history(state: str | None) -> list[str]:
    if state is None:
        return []
    return ["COMPLETED", state] if state == "COLLECTED" else [state]


@pytest.mark.parametrize("origin", ALL)
@pytest.mark.parametrize("to", list(states.EVIDENCE))
def test_exactly_the_legal_transitions_pass(origin: str | None, to: str) -> None:
    """Every pair of states: the legal ones pass with evidence, all others raise."""
    if (origin, to) in LEGAL:
        assert states.check(_history(origin), to, FULL[to], run_id="r") == origin
    else:
        with pytest.raises(IllegalTransition):
            states.check(_history(origin), to, FULL[to], run_id="r")


@pytest.mark.parametrize(
    ("to", "key"), [(state, key) for state, keys in states.EVIDENCE.items() for key in keys]
)
def test_no_state_without_each_of_its_evidence(to: str, key: str) -> None:
    """Leaving out any one kind of evidence refuses the state and names what is missing."""
    origin = next(a for a, b in sorted(LEGAL, key=str) if b == to)
    evidence = {name: value for name, value in FULL[to].items() if name != key}
    with pytest.raises(IllegalTransition, match=key):
        states.check(_history(origin), to, evidence, run_id="r")


@pytest.mark.parametrize("ended", ["FAILED", "PARTIAL"])
def test_a_salvage_is_never_verified(ended: str) -> None:
    """What was collected from a failed or partial run stays COLLECTED."""
    with pytest.raises(IllegalTransition, match="salvage"):
        states.check(["RUNNING", ended, "COLLECTED"], "VERIFIED", FULL["VERIFIED"], run_id="r")


def test_failed_is_shut_down_only_on_an_order() -> None:
    """FAILED keeps its host until somebody orders otherwise."""
    with pytest.raises(IllegalTransition, match="order"):
        states.check(["FAILED"], "SHUTDOWN", {"receipt": {"state": "off"}}, run_id="r")
