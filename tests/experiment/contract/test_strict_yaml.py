from __future__ import annotations

import time
from typing import Any

import pytest

from experiment.contract.strict_yaml import MAX_BYTES, YamlFault, parse

# text, value: what a person meant stays what it was.
KEPT: list[tuple[str, Any]] = [
    ("a: no", {"a": "no"}),
    ("a: on", {"a": "on"}),
    ("a: true", {"a": True}),
    ("a: 2024-05-01", {"a": "2024-05-01"}),
    ("a: 12:30:00", {"a": "12:30:00"}),
    ("a: 0123", {"a": "0123"}),
    ("a: 0x10", {"a": "0x10"}),
    ("a: 1_000", {"a": "1_000"}),
    ("a: 1e3", {"a": 1000.0}),
    ("a: 1.50", {"a": 1.5}),
    ("a: -7", {"a": -7}),
    ("a: .inf", {"a": float("inf")}),
    ("a:", {"a": None}),
    ("a: ~", {"a": None}),
    ("1: x", {"1": "x"}),
    ("a: '12'", {"a": "12"}),
    ("\ufeffa: 1", {"a": 1}),
    ("", None),
    ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),
    ('{"a": [1, null, {"b": false}]}', {"a": [1, None, {"b": False}]}),
]


@pytest.mark.parametrize(("text", "value"), KEPT, ids=[repr(text) for text, _ in KEPT])
def test_values(text: str, value: Any) -> None:
    """Plain scalars have the one meaning of the core schema."""
    assert parse(text.encode()) == (value, [])


REFUSED = [
    (b"a: !!python/object/apply:os.system [x]", "tag"),
    (b"a: !custom x", "tag"),
    (b"a: 1\n---\nb: 2\n", "single document"),
    (b"a: [1, 2", "expected"),
    (b"\xff\xfe", "UTF-8"),
    (b"a: \x00", "control characters"),
    (b"? [1, 2]\n: x", "key that is text"),
    (b"a: " + b"[" * 40 + b"]" * 40, "levels of nesting"),
    (b"[" * 20_000, "levels of nesting"),
    (b"a: &a [*a]", "levels of nesting"),
    (b"a: " + b"x" * MAX_BYTES, "bytes"),
    (b"a: *nowhere", "undefined alias"),
]


@pytest.mark.parametrize(("data", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(data: bytes, says: str) -> None:
    """What is no bounded plain data is refused with a reason."""
    with pytest.raises(YamlFault, match=says):
        parse(data)


def test_alias_bomb_costs_nothing() -> None:
    """Aliases that would multiply to billions of values are refused at once."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    begun = time.monotonic()
    with pytest.raises(YamlFault, match="aliases counted"):
        parse("\n".join(lines).encode())
    assert time.monotonic() - begun < 5


def test_duplicates_are_collected() -> None:
    """All duplicate keys come back with their lines; the first value stays."""
    value, faults = parse(b"a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert value == {"a": 1, "b": {"c": 1}}
    assert [(str(fault), fault.line) for fault in faults] == [
        ("duplicate key 'c'", 2),
        ("duplicate key 'a'", 3),
    ]
