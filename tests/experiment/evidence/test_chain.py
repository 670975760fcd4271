"""The ledger's chain: one digest rule on both sides, and every kind of damage told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.evidence import verify
from experiment.evidence.chain import FIRST_PREV, check_chain, entry_digest, head, ledger_bytes
from remote.agent.files import canonical_json
from tests.experiment.evidence.sealed_folder import chained

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def _try(rule: Any, value: Any) -> bytes | str:
    try:
        return bytes(rule(value))
    except ValueError:
        return "refused"


@given(JSON)
def test_verify_repeats_the_agent_s_canonical_json(value: Any) -> None:
    """The rule in the standalone file and the one on the wire give the same bytes."""
    assert _try(verify.canonical_json, value) == _try(canonical_json, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_has_no_canonical_form_is_refused_by_both(value: Any) -> None:
    """NaN, infinity and lone surrogates never get a digest."""
    for rule in (verify.canonical_json, canonical_json):
        with pytest.raises(ValueError):
            rule({"x": value})


def test_a_whole_chain_holds() -> None:
    """No entry, one entry and many are whole; the first predecessor is 64 zeros."""
    for count in (0, 1, 20):
        entries = chained(["step"] * count)
        assert check_chain(entries) == []
    assert head([]) == FIRST_PREV == "0" * 64
    assert head(entries) == entry_digest(entries[-1])


def test_a_chain_may_start_at_zero_but_must_be_contiguous() -> None:
    """`seq` counts on from the first entry's, whatever that is."""
    entries = chained(["a", "b"])
    for number, entry in enumerate(entries):
        entry["seq"] = number
        entry["prev_sha256"] = entries[number - 1]["sha256"] if number else FIRST_PREV
        entry["sha256"] = entry_digest(entry)
    assert check_chain(entries) == []
    entries[1]["seq"] = 2
    entries[1]["sha256"] = entry_digest(entries[1])
    assert [item["expected"] for item in check_chain(entries)] == ["entry 1"]


DAMAGE = {
    "changed evidence": lambda e: e[2]["evidence"].update(reward=9),
    "changed digest": lambda e: e[2].update(sha256="f" * 64),
    "changed predecessor": lambda e: e[2].update(prev_sha256="f" * 64),
    "dropped first": lambda e: e.pop(0),
    "dropped middle": lambda e: e.pop(2),
    "swapped": lambda e: e.insert(1, e.pop(2)),
    "doubled": lambda e: e.insert(2, dict(e[2])),
    "extra key": lambda e: e[1].update(note="hello"),
    "missing key": lambda e: e[1].pop("epoch"),
    "seq as text": lambda e: e[1].update(seq="2"),
    "seq as bool": lambda e: e[0].update(seq=True),
    "no digest": lambda e: e[3].pop("sha256"),
    "infinite": lambda e: e[3]["evidence"].update(reward=float("inf")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_as_an_entry_of_the_ledger(name: str) -> None:
    """Whatever is done to a chain but cutting its tail is seen in the chain itself."""
    entries = chained(["a", "b", "c", "d", "e"])
    DAMAGE[name](entries)
    broken = check_chain(entries)
    assert broken
    assert {(item["path"], item["link"]) for item in broken} == {("ledger.jsonl", "entry")}
    assert all(isinstance(text, str) for item in broken for text in item.values())


def test_the_export_is_one_canonical_object_a_line() -> None:
    """`ledger.jsonl` holds each entry's canonical bytes and a newline."""
    entries = chained(["a", "b"])
    assert ledger_bytes(entries).splitlines() == [canonical_json(entry) for entry in entries]
    assert ledger_bytes([]) == b""
