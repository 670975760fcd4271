"""Training curves as inline SVG that follows the page's colours, light or dark.

Matplotlib knows no CSS: the picture is drawn in marker colours, which are then replaced by the
page's variables.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.agent.metrics import read_metrics

# The order on the page, and what a number means.
LABELS = {
    "reward": "reward",
    "loss": "loss",
    "kl": "KL divergence (nats)",
    "entropy": "entropy (nats)",
    "reward_std": "spread of the reward",
    "completion_length": "completion length (tokens)",
    "throughput": "throughput (tokens/s)",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "val_loss": "validation loss",
    "accuracy": "accuracy (fraction)",
}
FIRST = ("reward", "loss")
MAX_POINTS = 2000

_INK, _GRID, _LINE = "#010203", "#010204", "#010205"
_COLOURS = {_INK: "var(--muted)", _GRID: "var(--line)", _LINE: "var(--accent)"}


@dataclass(frozen=True)
class Curve:
    """One metric over the steps: finite or NaN values, and what to call it."""

    name: str
    label: str
    steps: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """The last finite value; NaN when there is none."""
        return next((value for value in reversed(self.values) if math.isfinite(value)), math.nan)


def read_curves(metrics: Path) -> list[Curve]:
    """The known metrics of a `metrics.jsonl`, in the page's order; none without the file."""
    points: list[dict[str, Any]] = []
    offset = 0
    while True:
        reading = read_metrics(metrics, offset)
        points += reading.points
        if reading.next_offset <= offset:
            break
        offset = reading.next_offset
    curves = []
    for name, label in LABELS.items():
        places = [
            (_step(point, number), float(point["metrics"][name]))
            for number, point in enumerate(points, 1)
            if name in point["metrics"]
        ]
        if any(math.isfinite(value) for _, value in places):
            steps, values = zip(*places, strict=True)
            curves.append(Curve(name, label, steps, values))
    return curves


def draw(curve: Curve) -> str:
    """The curve as an `<svg>` element without size or colours of its own."""
    # Half a second, which commands that only look must not pay.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    steps, values = _thinned(curve.steps, curve.values)
    # The salt makes the element ids differ between the pictures of a page, and stay the same
    # from one rendering to the next.
    with mpl.rc_context({"svg.hashsalt": curve.name, "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(5.2, 2.6), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        marker = "o" if len(values) <= 40 else ""
        axes.plot(steps, values, color=_LINE, linewidth=1.8, marker=marker, markersize=3.5)
        axes.set_xlabel("step", color=_INK)
        axes.grid(color=_GRID, linewidth=0.8)
        axes.tick_params(colors=_INK, length=0)
        axes.spines[:].set_visible(False)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(sink.getvalue(), curve.label)


def _inline(svg: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg, count=2)
    for marker, colour in _COLOURS.items():
        svg = svg.replace(marker, colour)
    # Matplotlib names its fonts in each text; the page's own is meant.
    svg = re.sub(r"font: [0-9.]+px [^;\"]*", lambda m: f"font-size: {m[0].split()[1]}", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label} by step" ', 1).strip()


def _step(point: dict[str, Any], number: int) -> float:
    step = point.get("step")
    return float(step) if isinstance(step, (int, float)) else float(number)


def _thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most about MAX_POINTS points: of each stretch its lowest and highest, in their order."""
    width = max(1, math.ceil(2 * len(values) / MAX_POINTS))
    if width <= 2:
        return list(steps), [value if math.isfinite(value) else math.nan for value in values]
    kept: list[int] = []
    for begin in range(0, len(values), width):
        finite = [i for i in range(begin, min(begin + width, len(values))) if _finite(values[i])]
        if finite:
            extremes = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
            kept += sorted(extremes)
        else:
            kept.append(begin)
    chosen = [values[i] if _finite(values[i]) else math.nan for i in kept]
    return [steps[i] for i in kept], chosen


def _finite(value: float) -> bool:
    return math.isfinite(value)
