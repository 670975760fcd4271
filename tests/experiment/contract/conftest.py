from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

GOOD: dict[str, Any] = {
    "schema": 1,
    "job": "Tiny GRPO_1",
    "project": {"directory": "project", "entry_command": "python train.py"},
    "run": {"artifacts": ["summary.json"]},
    "billing": {"max_total": 1, "max_hours": 1, "max_price_per_hour": 2},
}
DELETE = "DELETE"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A contract's folder with a project in it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('trains')\n")
    (project / "requirements.txt").write_text("\n")
    (project / "grpo.yaml").write_text("steps: 30\nsave_steps: 10\n")
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Write the good contract with changes (dotted keys); gives its path."""

    def write_changed(changes: Mapping[str, Any]) -> Path:
        data = copy.deepcopy(GOOD)
        for key, value in changes.items():
            place = data
            *above, last = key.split(".")
            for part in above:
                place = place.setdefault(part, {})
            if value == DELETE:
                place.pop(last)
            else:
                place[last] = value
        path = folder / "contract.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
        return path

    return write_changed
