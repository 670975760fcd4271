"""Metrics read by offset: nothing twice, nothing lost, nothing half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.agent.metrics import parse_metrics_jsonl, read_metrics

LINES = [
    {"step": 1, "epoch": 0.5, "loss": 4.2, "lr": 1e-3, "at": "2026-01-02T03:04:05Z"},
    {"step": 2, "loss": float("nan"), "kl": float("inf"), "reward": float("-inf")},
    {"step": 3, "reward": 0.25, "note": "words", "ok": True, "nested": {"a": 1}, "none": None},
    {"step": 4, "loss": "nan"},
]
DATA = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)


def test_points() -> None:
    """Numbers stay numbers; nan and inf become strings; what is no number is left out."""
    points = parse_metrics_jsonl(DATA).points
    assert points[0] == {
        "step": 1,
        "epoch": 0.5,
        "metrics": {"loss": 4.2, "lr": 1e-3},
        "at": "2026-01-02T03:04:05Z",
    }
    assert [point["metrics"] for point in points[1:]] == [
        {"loss": "nan", "kl": "inf", "reward": "-inf"},
        {"reward": 0.25},
        {"loss": "nan"},
    ]


def test_partial_last_line_waits(tmp_path: Path) -> None:
    """A line still being written is neither counted nor lost."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(DATA[:-5])
    first = read_metrics(path, 0)
    assert [point["step"] for point in first.points] == [1, 2, 3]
    path.write_bytes(DATA)
    second = read_metrics(path, first.next_offset)
    assert [point["step"] for point in second.points] == [4]
    assert second.next_offset == len(DATA)
    assert read_metrics(path, second.next_offset).points == []


@given(st.lists(st.integers(0, len(DATA)), max_size=6))
def test_any_cuts_give_the_same_points(cuts: list[int]) -> None:
    """However a growing file is polled, the points are those of the whole file."""
    expected = parse_metrics_jsonl(DATA).points
    found: list[dict[str, Any]] = []
    offset = 0
    for end in [*sorted(cuts), len(DATA)]:
        reading = parse_metrics_jsonl(DATA[offset : max(end, offset)], offset)
        found += reading.points
        offset = reading.next_offset
    assert found == expected


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_a_poll_takes_a_share(tmp_path: Path, limit: int) -> None:
    """With a small share every poll gets on, even when one line is longer than the share."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(DATA)
    steps = []
    offset = 0
    while offset < len(DATA):
        reading = read_metrics(path, offset, limit)
        assert reading.next_offset > offset
        steps += [point["step"] for point in reading.points]
        offset = reading.next_offset
    assert steps == [1, 2, 3, 4]


def test_replaced_file_is_read_anew(tmp_path: Path) -> None:
    """A file shorter than the offset was replaced."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(DATA)
    assert len(read_metrics(path, len(DATA) + 1).points) == 4


def test_damaged_lines_are_counted() -> None:
    """A line that is no JSON object is skipped and counted, blank lines are nothing."""
    reading = parse_metrics_jsonl(b'{"step": 1}\n\nnot json\n[1]\n\xff\xfe\n{"step": 2}\n')
    assert [point["step"] for point in reading.points] == [1, 2]
    assert reading.damaged == 3


def test_no_file(tmp_path: Path) -> None:
    """Before the first step there is nothing, and that is no error."""
    assert read_metrics(tmp_path / "metrics.jsonl", 0) == ([], 0, 0)
