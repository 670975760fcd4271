from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from experiment.contract import Contract, load_contract
from experiment.contract.fields import duration_text, money_text, parse_duration, parse_money
from experiment.contract.slug import slugify
from experiment.errors import ContractInvalid

Write = Callable[[Mapping[str, Any]], Path]

PINS = [
    (None, False),
    ("main", False),
    ("Master", False),
    ("null", False),
    ("refs/heads/x", False),
    ("v1.0", False),
    ("0123456789abcdef0123456789abcdef01234567", True),
]


@pytest.mark.parametrize(("revision", "pinned"), PINS)
def test_moving_revisions(revision: str | None, pinned: bool, write: Write) -> None:
    """An unset revision, or a name that can move, makes the run not bitwise reproducible."""
    item = {"name": "base", "source": "modelscope", "id": "a/b", "revision": revision}
    contract = load_contract(write({"inputs": [item]}))
    assert contract.bitwise_reproducible is pinned


def test_frozen(write: Write) -> None:
    """A contract can't be changed after it was loaded."""
    contract = load_contract(write({}))
    with pytest.raises(ValidationError):
        contract.job = "other"  # type: ignore[misc]


def test_canonical_reads_back(write: Write, folder: Path) -> None:
    """What a run recorded gives the same contract and digest again, by JSON too."""
    contract = load_contract(write({"run.env": {"N": 2}, "store": "out"}))
    recorded = json.loads(json.dumps(contract.canonical()))
    again = Contract.from_canonical(recorded, folder)
    assert again.canonical() == contract.canonical()
    assert again.sha256 == contract.sha256
    assert again.project.directory == contract.project.directory


def test_from_canonical_refuses_what_is_none(folder: Path) -> None:
    """A damaged record is refused with its faults."""
    with pytest.raises(ContractInvalid) as caught:
        Contract.from_canonical({"schema": 1}, folder)
    assert len(caught.value.details) == 4


def test_digest_does_not_depend_on_the_place(write: Write, folder: Path, tmp_path: Path) -> None:
    """Two clones in different folders give one digest."""
    contract = load_contract(write({}))
    elsewhere = Contract.from_canonical(contract.canonical(), tmp_path / "elsewhere")
    assert elsewhere.sha256 == contract.sha256
    assert elsewhere.project.directory == tmp_path / "elsewhere" / "project"


SAME = [
    {"billing.max_total": 2, "billing.idle_grace": "60m"},
    {"billing.max_total": "2.00", "billing.idle_grace": "1h"},
    {"billing.max_total": 2.0, "billing.idle_grace": "3600s"},
]


def test_one_meaning_one_digest(write: Write) -> None:
    """Different spellings of one amount and one duration are one contract."""
    assert len({load_contract(write(changes)).sha256 for changes in SAME}) == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shuffle=st.randoms(use_true_random=False))
def test_digest_ignores_the_order_of_keys(write: Write, folder: Path, shuffle: Any) -> None:
    """Reordered keys at any level give the same digest."""
    contract = load_contract(write({"run.env": {"A": "1", "B": "2", "C": "3"}}))

    def reordered(value: Any) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            shuffle.shuffle(keys)
            return {key: reordered(value[key]) for key in keys}
        return [reordered(item) for item in value] if isinstance(value, list) else value

    again = Contract.from_canonical(reordered(contract.canonical()), folder)
    assert again.sha256 == contract.sha256


@given(st.decimals(min_value=0, max_value=1_000_000, places=6))
def test_money_reads_back(amount: Any) -> None:
    """Written money is the same amount when it is read, and is written the same again."""
    text = money_text(amount)
    assert parse_money(text) == amount
    assert money_text(parse_money(text)) == text


@given(st.integers(min_value=0, max_value=30 * 24 * 3600))
def test_duration_reads_back(seconds: int) -> None:
    """Written durations are the same seconds when they are read."""
    assert parse_duration(duration_text(seconds)) == seconds


SLUGS = [
    ("Tiny GRPO", "tiny-grpo"),
    ("a__b--c", "a-b-c"),
    ("-x-", "x"),
    ("Qwen/Qwen2.5-0.5B", "qwen-qwen2-5-0-5b"),
    ("é1", "1"),
    ("a" * 60, "a" * 48),
    ("a" * 47 + "-b", "a" * 47),
]


@pytest.mark.parametrize(("text", "expected"), SLUGS)
def test_slugs(text: str, expected: str) -> None:
    """Hyphen-only, lower-case, at most 48, never ending in a hyphen."""
    assert slugify(text) == expected


@given(st.text(max_size=80))
def test_slugs_are_safe(text: str) -> None:
    """Any text gives a safe name or a refusal, and a slug is its own slug."""
    try:
        made = slugify(text)
    except ValueError:
        return
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert 0 < len(made) <= 48
    assert slugify(made) == made
