"""`report.html`: one file without scripts or outside parts, that tells a run to a person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiment.clock import parse_iso
from experiment.evidence.verify import INVENTORY, scan_folder
from experiment.results.curves import FIRST, Curve, draw, read_curves
from remote.agent.files import canonical_json, read_json_or_none, sha256_bytes

MAX_ARTIFACTS = 500
GOOD, BAD = {"VERIFIED", "SHUTDOWN"}, {"FAILED", "PARTIAL"}


def render_report(
    results_dir: Path,
    *,
    job: str,
    run_id: str,
    state: str,
    entries: Sequence[Mapping[str, Any]],
    cost: Mapping[str, Any],
) -> bytes:
    """The page for a run, from its results folder, its ledger and its bill.

    Args:
        results_dir: read are `metrics.jsonl`, `summary.json` and `artifact_inventory.json` (every
            file that is there, without an inventory); what is missing is said, not invented.
        state: the run's state now.
        entries: the run's ledger in order.
        cost: any of `amount cap left rate currency paid_seconds`, money in the currency's units,
            and `rentals` as in `charter rentals`.

    Returns:
        UTF-8 HTML; the same input gives the same bytes.
    """
    curves = read_curves(results_dir / "metrics.jsonl")
    artifacts, total = _artifacts(results_dir)
    done = [entry for entry in entries if entry.get("phase") == "done"]
    page = _environment().get_template("report.html.j2")
    text = page.render(
        job=job,
        run_id=run_id,
        state=state,
        tone="good" if state in GOOD else "bad" if state in BAD else "open",
        verified=any(entry.get("to") == "VERIFIED" for entry in done),
        facts=_facts(curves, entries, cost),
        steps=[_step(entry, before) for before, entry in zip([None, *done], done, strict=False)],
        pictures=[(curve, Markup(draw(curve))) for curve in curves],
        first=FIRST,
        summary=_summary(results_dir / "summary.json"),
        cost=_cost_rows(cost),
        rentals=list(cost.get("rentals") or []),
        artifacts=artifacts,
        total=total,
        limit=MAX_ARTIFACTS,
        entries=[json.dumps(entry, indent=1, ensure_ascii=False) for entry in entries],
    )
    return text.encode("utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=size, moment=moment, number=number)
    return environment


def size(count: Any) -> str:
    """Bytes for people: `512 B`, `1.5 KiB`, `3.2 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(text: Any) -> str:
    """`2026-01-01 12:00:05 UTC`; what is no moment stays as it is."""
    try:
        return parse_iso(str(text)).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return str(text)


def number(value: Any) -> str:
    """Four significant digits for a float, everything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def duration(seconds: float) -> str:
    """`0.4 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _facts(
    curves: Sequence[Curve], entries: Sequence[Mapping[str, Any]], cost: Mapping[str, Any]
) -> list[tuple[str, str]]:
    facts = []
    for curve in curves:
        if curve.name in FIRST:
            begun = next(value for value in curve.values if math.isfinite(value))
            facts.append((curve.label, f"{begun:.4g} → {curve.last:.4g}"))
    if curves:
        facts.append(("steps", f"{max(curve.steps[-1] for curve in curves):.0f}"))
    moments = [when for when in (_when(entry) for entry in entries) if when]
    if moments:
        facts.append(("from first to last entry", duration(_seconds(moments[0], moments[-1]))))
    if "amount" in cost:
        facts.append(("cost, an estimate", _money(cost["amount"], cost.get("currency"))))
    return facts


def _step(entry: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    now, then = _when(entry), _when(before) if before else None
    return {
        "seq": entry.get("seq"),
        "step": entry.get("step"),
        "attempt": entry.get("attempt"),
        "state": entry.get("to") if entry.get("to") != entry.get("from") else None,
        "at": entry.get("at_utc"),
        "took": duration(_seconds(then, now)) if now and then else "",
        "evidence": sha256_bytes(canonical_json(entry.get("evidence"))),
        "sha256": entry.get("sha256"),
    }


def _summary(path: Path) -> list[tuple[str, str]]:
    summary = read_json_or_none(path)
    if not isinstance(summary, dict):
        return []
    return [
        (str(key), number(value) if _plain(value) else json.dumps(value, ensure_ascii=False))
        for key, value in summary.items()
    ]


def _cost_rows(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    currency = cost.get("currency")
    amounts = {"amount": "spent, an estimate", "cap": "cap", "left": "left under the cap"}
    rows = [(label, _money(cost[key], currency)) for key, label in amounts.items() if key in cost]
    if "rate" in cost:
        rows.append(("price", f"{_money(cost['rate'], currency)} per hour"))
    if "paid_seconds" in cost:
        rows.append(("paid time", duration(float(cost["paid_seconds"]))))
    told = {*amounts, "rate", "paid_seconds", "currency", "rentals", "estimate"}
    others = [key for key in cost if key not in told and _plain(cost[key])]
    return rows + [(str(key), number(cost[key])) for key in others]


def _artifacts(results_dir: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What was collected, and how much that is; links without a size."""
    inventory = read_json_or_none(results_dir / INVENTORY)
    files = inventory.get("files") if isinstance(inventory, dict) else None
    if not isinstance(files, list):
        files = scan_folder(str(results_dir))
    rows = [dict(entry) for entry in files if isinstance(entry, dict) and "path" in entry]
    total = sum(row["bytes"] for row in rows if isinstance(row.get("bytes"), int))
    return rows[:MAX_ARTIFACTS], {"files": len(rows), "bytes": total}


def _money(amount: Any, currency: Any) -> str:
    try:
        value = Decimal(str(amount))
    except InvalidOperation:
        return f"{amount} {currency or ''}".strip()
    places = Decimal("0.01") if value == 0 or abs(value) >= 1 else Decimal("0.0001")
    return f"{value.quantize(places):,} {currency or ''}".strip()


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, Decimal))


def _when(entry: Mapping[str, Any]) -> datetime | None:
    try:
        return parse_iso(str(entry.get("at_utc")))
    except ValueError:
        return None


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
