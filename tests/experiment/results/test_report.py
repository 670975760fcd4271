"""The report: everything escaped, nothing from outside, nothing invented."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from experiment.results.curves import MAX_POINTS, read_curves
from experiment.results.report import duration, moment, number, render_report, size
from tests.experiment.evidence.sealed_folder import RUN_ID, chained, fill

COST: dict[str, Any] = {
    "amount": "0.0123",
    "currency": "CNY",
    "cap": "1",
    "rate": "2",
    "paid_seconds": "22.1",
    "estimate": True,
}


def metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def page(folder: Path, **given: Any) -> str:
    values: dict[str, Any] = {
        "job": "tiny-grpo",
        "run_id": RUN_ID,
        "state": "SHUTDOWN",
        "entries": chained(["plan", "bundle"]),
        "cost": COST,
    }
    return render_report(folder, **{**values, **given}).decode()


def test_a_full_page(tmp_path: Path) -> None:
    """Curves, steps with UTC times, cost with its currency, artifacts with hashes; reproducible."""
    fill(tmp_path)
    metrics(tmp_path, [{"step": i, "loss": 1 / i, "reward": i / 10} for i in range(1, 11)])
    text = page(tmp_path)
    assert text.count("<svg") == 2
    assert "0.1 → 1" in text
    assert "2026-01-01 12:00:02 UTC" in text
    assert "0.0123 CNY" in text
    assert "2.00 CNY per hour" in text
    assert "22.1 s" in text
    assert re.search(r"adapter\.safetensors.*?4\.0 KiB.*?[0-9a-f]{64}", text, re.DOTALL)
    assert text == page(tmp_path)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    """No script, no address to load from, no id twice, colours by the page only."""
    metrics(tmp_path, [{"step": i, "loss": 1.0, "reward": 2.0, "kl": 0.1} for i in range(60)])
    text = page(tmp_path)
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    clips = [name for name in ids if re.match(r"p[0-9a-f]+$", name)]
    assert len(clips) == len(set(clips)) == 3
    assert not re.search(r"#0102", text)
    assert "prefers-color-scheme: dark" in text


def test_every_value_is_escaped(tmp_path: Path) -> None:
    """A name chosen by somebody else is text, wherever it stands."""
    evil = '<img src=x onerror="alert(1)">'
    entries = chained([evil, "b"])
    entries[1]["to"] = evil
    entries[1]["evidence"] = {evil: evil}
    entries[1]["at_utc"] = evil
    inventory = {"files": [{"path": evil, "bytes": 3, "sha256": evil}, {"path": "l", "link": evil}]}
    (tmp_path / "artifact_inventory.json").write_text(json.dumps(inventory))
    (tmp_path / "summary.json").write_text(json.dumps({evil: evil, "nested": {evil: 1}}))
    metrics(tmp_path, [{"step": 1, "loss": 1.0, evil: 2.0}])
    rental = {"instance": evil, "provider": evil, "status": evil, "rate": evil, "cost": evil}
    text = page(
        tmp_path,
        job=evil,
        run_id=evil,
        state=evil,
        entries=entries,
        cost={"amount": evil, "currency": evil, evil: evil, "rentals": [rental]},
    )
    assert "<img" not in text
    assert "&lt;img" in text


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    """Nothing recorded is said in words, not drawn."""
    text = page(tmp_path, entries=[], cost={}, state="FAILED")
    for words in ("No metrics", "No step", "No bill", "Nothing was collected", "not verified"):
        assert words in text
    assert "<svg" not in text


def test_damaged_and_odd_metrics_do_not_stop_the_page(tmp_path: Path) -> None:
    """Broken lines, NaN, infinity, texts and missing steps: what is a number is drawn."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"loss": 1.5}\nnot json\n[1]\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": "inf"}\n'
        '{"step": 4, "loss": "words", "reward": null}\n{"step": 5, "loss": 0.5}\n{"step": 6, "lo'
    )
    (curve,) = read_curves(tmp_path / "metrics.jsonl")
    assert curve.steps == (1, 2, 3, 5)
    assert math.isnan(curve.values[1])
    assert curve.last == 0.5
    assert page(tmp_path).count("<svg") == 1


def test_long_runs_stay_small_and_keep_their_spikes(tmp_path: Path) -> None:
    """20,000 steps are thinned to a small picture in which a single spike is still seen."""
    rows = [{"step": i, "loss": 50.0 if i == 6_180 else 1.0} for i in range(20_000)]
    metrics(tmp_path, rows)
    from experiment.results.curves import _thinned

    (curve,) = read_curves(tmp_path / "metrics.jsonl")
    steps, values = _thinned(curve.steps, curve.values)
    assert len(values) <= MAX_POINTS + 2
    assert (max(values), steps[values.index(50.0)]) == (50.0, 6_180)
    assert len(page(tmp_path)) < 300_000


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (size(512), "512 B"),
        (size(4096), "4.0 KiB"),
        (size(3 << 40), "3.0 TiB"),
        (moment("2026-01-01T12:00:05.1Z"), "2026-01-01 12:00:05 UTC"),
        (moment("running"), "running"),
        (number(0.123456), "0.1235"),
        (number(3), "3"),
        (duration(0.42), "0.4 s"),
        (duration(125), "2 min 05 s"),
        (duration(11400), "3 h 10 min"),
    ],
)
def test_numbers_have_units(told: str, expected: str) -> None:
    """Sizes, moments and durations as a person reads them."""
    assert told == expected
