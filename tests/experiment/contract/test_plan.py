from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiment.contract import Contract, load_contract
from experiment.contract.inputs import resolve_inputs
from experiment.contract.plan import make_plan
from experiment.contract.warnings import warnings_of
from experiment.errors import GuardRefused, NotFound
from remote.agent.files import canonical_json, sha256_bytes
from remote.agent.manifest import tree_sha256

Write = Callable[[Mapping[str, Any]], Path]
MODEL = {"name": "base", "source": "folder", "path": "model", "revision": "a1" * 20}
TRAINER = {
    "project.entry_command": "DELETE",
    "project.trainer": "grpo",
    "project.config": "grpo.yaml",
}

# max_total, max_hours, rate, then the worst case: amount, hours
BOUNDS = [
    (10, 2, 3, "6", 2.0),
    (5, 2, 3, "5", 1.6666),
    (5, 0.5, "1.50", "0.75", 0.5),
    (5, 3, 0, "0", 3.0),
    (0, 3, 1, "0", 0.0),
]


@pytest.mark.parametrize(("total", "hours", "rate", "amount", "span"), BOUNDS)
def test_worst_case(
    total: float, hours: float, rate: float, amount: str, span: float, write: Write
) -> None:
    """The worst case is whichever cap binds first, at the highest allowed price."""
    changes = {
        "billing.max_total": total,
        "billing.max_hours": hours,
        "billing.max_price_per_hour": "DELETE",
        "host.gpus": [
            {"name": "cheap", "max_price_per_hour": 0},
            {"name": "dear", "max_price_per_hour": rate},
        ],
    }
    made = make_plan(load_contract(write(changes)))
    assert made.worst_case["amount"] == amount
    assert made.worst_case["currency"] == "CNY"
    assert made.worst_case["hours"] == pytest.approx(span, abs=1e-3)


def test_the_json_of_the_interface(write: Write, folder: Path) -> None:
    """Resolved contract, its digest, the steps of the table, and nothing on disk changed."""
    before = sorted(folder.rglob("*"))
    contract = load_contract(write({}))
    body = make_plan(contract).as_json()
    assert body["contract"] == contract.canonical()
    assert body["contract_sha256"] == sha256_bytes(canonical_json(body["contract"]))
    assert [step["name"] for step in body["steps"]] == [
        "plan",
        "bundle",
        "approve",
        "rent",
        "arm",
        "preflight",
        "upload",
        "environment",
        "snapshot",
        "preflight_full",
        "launch",
        "monitor",
        "collect",
        "verify",
        "shutdown",
        "store",
        "seal",
    ]
    assert all(step["does"] for step in body["steps"])
    assert sorted(folder.rglob("*")) == sorted([*before, folder / "contract.yaml"])


def test_inputs_are_bound(write: Write, folder: Path) -> None:
    """A folder's files come with bytes and digests; any changed byte changes the tree digest."""
    model = folder / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub/w.bin").write_bytes(b"123")
    (model / ".autodl_model_complete.json").write_text("{}")
    (model / "linked").symlink_to("sub/w.bin")
    contract = load_contract(write({"inputs": [MODEL]}))
    (item,) = make_plan(contract).inputs
    assert [(file["path"], file["bytes"]) for file in item["files"]] == [
        ("config.json", 2),
        ("linked", 3),
        ("sub/w.bin", 3),
    ]
    assert item["files"][0]["sha256"] == sha256_bytes(b"{}")
    assert item["tree_sha256"] == tree_sha256(item["files"])
    assert item["folder"] == str(model)
    (model / "sub/w.bin").write_bytes(b"124")
    assert make_plan(contract).inputs[0]["tree_sha256"] != item["tree_sha256"]


def test_missing_and_empty_inputs(write: Write, folder: Path) -> None:
    """A missing input folder is exit 1 with its key; empty ones and bad links are refused."""
    contract = load_contract(write({"inputs": [MODEL]}))
    with pytest.raises(NotFound, match=r"inputs\.0\.path") as caught:
        resolve_inputs(contract)
    assert caught.value.exit_code == 1
    (folder / "model").mkdir()
    with pytest.raises(GuardRefused, match="empty input folder"):
        resolve_inputs(contract)
    (folder / "model/l").symlink_to("nowhere")
    with pytest.raises(GuardRefused, match="neither a file nor a link to one: 'l'"):
        resolve_inputs(contract)


# changes, seconds a step of an earlier run, key and words of the warning
WARNED = [
    ({"billing.max_hours": 5}, None, "billing.max_hours", "would cost 10, but max_total is 1"),
    ({"billing.max_hours": 0.1}, None, "billing.max_total", "nothing is left for training"),
    ({"billing.hold_on_failure": "2h"}, None, "billing.hold_on_failure", "longer than"),
    ({"billing.shutdown": "keep"}, None, "billing.shutdown", "meter running"),
    ({"billing.shutdown": "release"}, None, "billing.shutdown", "deletes"),
    ({}, None, "project.entry_command", "lost by a stop"),
    ({}, None, "run.verifier", "no verifier"),
    ({"secrets": ["CHARTERLESS_TOKEN"]}, None, "secrets.0", "CHARTERLESS_TOKEN is not set"),
    ({**TRAINER}, 3600.0, "billing.max_total", "first checkpoint comes after about 10.0 h"),
    ({**TRAINER}, 60.0, "billing.max_total", "all 30 steps take about 30 min"),
    ({**TRAINER, "save": 30}, None, "project.config", "lost by any stop before the end"),
    ({"inputs": [{**MODEL, "revision": None}]}, None, "inputs.0.revision", "not set"),
    ({"inputs": [{**MODEL, "revision": "main"}]}, None, "inputs.0.revision", "'main' is a name"),
    ({"inputs": [MODEL], "host.min_free_gib": 0}, None, "host.min_free_gib", "inputs alone"),
    (
        {"inputs": [{"name": "q", "source": "modelscope", "id": "Qwen/Q", "revision": "v1"}]},
        None,
        "inputs.0",
        "no approval can bind them",
    ),
]


@pytest.mark.parametrize(("changes", "pace", "key", "says"), WARNED)
def test_warnings(
    changes: dict[str, Any], pace: float | None, key: str, says: str, write: Write, folder: Path
) -> None:
    """Each risk is a warning at its key."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    if every := changes.pop("save", None):
        (folder / "project/grpo.yaml").write_text(f"steps: 30\nsave_steps: {every}\n")
    found = make_plan(load_contract(write(changes)), pace).warnings
    assert [item for item in found if item["key"] == key and says in item["message"]], found


def test_nothing_to_warn_of(write: Write, folder: Path) -> None:
    """A careful contract has no warnings."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    changes = {
        **TRAINER,
        "inputs": [MODEL],
        "billing.max_total": 2,
        "run.verifier": "python check.py",
        "secrets": ["A_TOKEN"],
    }
    contract: Contract = load_contract(write(changes))
    inputs = resolve_inputs(contract)
    assert list(warnings_of(contract, inputs, 3600, 1.0, {**os.environ, "A_TOKEN": "x"})) == []
