"""Metrics of a run, read incrementally by byte offset from `metrics.jsonl`.

One JSON object a line. A last line without its newline is still being written: it stays for the
next poll. Numbers that JSON does not have travel as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

# A poll's share; the next one goes on from `next_offset`.
MAX_BYTES = 1 << 20
PLACES = ("step", "epoch", "at")
SPELLED = {"nan": "nan", "inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}

Value = Union[int, float, str]


class Reading(NamedTuple):
    """Points in file order, where the next poll begins, and how many lines were no JSON object."""

    points: List[Dict[str, Any]]
    next_offset: int
    damaged: int


def read_metrics(path: Path, offset: int, max_bytes: int = MAX_BYTES) -> Reading:
    """The points written since `offset`. A file that became shorter is read from its start.

    Raises:
        OSError: the file is there and can't be read.
    """
    try:
        with open(path, "rb") as handle:
            size = handle.seek(0, 2)
            begin = offset if 0 <= offset <= size else 0
            handle.seek(begin)
            data = handle.read(max_bytes)
            if len(data) == max_bytes and b"\n" not in data:
                data += handle.readline()
    except FileNotFoundError:
        return Reading([], 0, 0)
    return parse_metrics_jsonl(data, begin)


def parse_metrics_jsonl(data: bytes, offset: int = 0) -> Reading:
    """The points in a piece of the file that begins at byte `offset`.

    A point is `{step, epoch, metrics: {name: number or "nan", "inf", "-inf"}, at}`.
    """
    end = data.rfind(b"\n") + 1
    points = []
    damaged = 0
    for line in data[:end].splitlines():
        if not line.strip():
            continue
        point = _point(line)
        if point is None:
            damaged += 1
        else:
            points.append(point)
    return Reading(points, offset + end, damaged)


def spelled(value: Any) -> Optional[Value]:
    """A metric's value as it travels; None for what is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return SPELLED.get(value.strip().lower())
    if isinstance(value, int):
        return value
    if not isinstance(value, float):
        return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _point(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    metrics = {
        name: value
        for name, value in ((key, spelled(entry[key])) for key in entry if key not in PLACES)
        if value is not None
    }
    return {
        "step": _finite(entry.get("step")),
        "epoch": _finite(entry.get("epoch")),
        "metrics": metrics,
        "at": entry.get("at"),
    }


def _finite(value: Any) -> Optional[Value]:
    found = spelled(value)
    return None if isinstance(found, str) else found
