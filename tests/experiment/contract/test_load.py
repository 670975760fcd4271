from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiment import errors
from experiment.contract import Contract, load_contract

CASES = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text())
# Put together here, so that no file of the project holds something shaped like a token.
TOKEN = "hf" + "_" + "abcdefghij" * 3
Write = Callable[[Mapping[str, Any]], Path]


def planted(value: Any) -> Any:
    """The value with `{HF}` replaced by the token, in keys too."""
    if isinstance(value, str):
        return value.replace("{HF}", TOKEN)
    if isinstance(value, dict):
        return {planted(key): planted(item) for key, item in value.items()}
    return [planted(item) for item in value] if isinstance(value, list) else value


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_refused(case: dict[str, Any], write: Write, folder: Path) -> None:
    """A bad contract gets one line with the key, what was expected, what was found; no trace."""
    path = write(planted(case["set"]))
    before = tree(folder)
    with pytest.raises(getattr(errors, case["error"])) as caught:
        load_contract(path)
    line = caught.value.line()
    assert caught.value.exit_code == case["exit"]
    assert not caught.value.details, caught.value.details
    for part in case["says"]:
        assert part in line
    everything = str(caught.value.as_json())
    assert "\n" not in line
    for part in case.get("hides", ()):
        assert part not in everything
    assert tree(folder) == before


def test_resolves_defaults(write: Write, folder: Path) -> None:
    """A short contract has every key resolved: slug, absolute folder, seconds, Decimal."""
    contract = load_contract(write({}))
    assert contract.job == "tiny-grpo-1"
    assert contract.project.directory == folder / "project"
    assert contract.base == folder
    assert contract.billing.max_total == Decimal(1)
    assert contract.billing.idle_grace == 900
    assert contract.host.provider == "local"
    assert contract.canonical()["billing"]["hold_on_failure"] == "20m"


def test_all_faults_at_once(write: Write) -> None:
    """Faults of shape, of rules and of the disk are reported together, a line each."""
    path = write(
        {
            "billing.max_total": "much",
            "billing.max_hour": 2,
            "project.directory": "nowhere",
            "run.artifacts": ["/etc/x"],
            "host.provider": "cloud",
            "host.data_root": "/usr/x",
        }
    )
    with pytest.raises(errors.GuardRefused) as caught:
        load_contract(path)
    lines = "\n".join(caught.value.details)
    for key in (
        "billing.max_total",
        "billing.max_hour",
        "project.directory",
        "run.artifacts.0",
        "host.provider",
        "host.data_root",
    ):
        assert key in lines
        assert key in caught.value.line()
    assert len(caught.value.details) == 6


def test_a_misspelt_key_brings_no_other_faults(write: Write) -> None:
    """A fault that only follows from another one is not reported."""
    path = write({"project.entry_command": "DELETE", "project.entry_comand": "python train.py"})
    with pytest.raises(errors.ContractInvalid) as caught:
        load_contract(path)
    assert caught.value.details == ()


def test_duplicate_keys_are_named_by_line(write: Write) -> None:
    """Every duplicate is a fault with its line; nothing is overwritten in silence."""
    path = write({})
    path.write_text(path.read_text() + "job: again\nstore: null\nstore: x\n")
    with pytest.raises(errors.ContractInvalid) as caught:
        load_contract(path)
    lines = path.read_text().splitlines()
    assert [f"{path}:{lines.index('job: again') + 1}" in caught.value.details[0]] == [True]
    assert "duplicate key 'store'" in caught.value.details[1]


def test_missing_contract(tmp_path: Path) -> None:
    """A contract that is not there is exit 1, with the command that makes one."""
    with pytest.raises(errors.NotFound, match="charter init") as caught:
        load_contract(tmp_path / "no.yaml")
    assert caught.value.exit_code == 1


def test_a_folder_is_no_contract(tmp_path: Path) -> None:
    """A folder given as a contract is said to be one."""
    with pytest.raises(errors.NotFound, match="found a folder"):
        load_contract(tmp_path)


OVERRIDES = [
    ("billing.max_total", "5.50", lambda c: c.billing.max_total == Decimal("5.5")),
    ("billing.idle_grace", "1h", lambda c: c.billing.idle_grace == 3600),
    ("host.gpus.0.name", "4090", lambda c: c.host.gpus[0].name == "4090"),
    ("inputs.base.revision", "1234567", lambda c: c.inputs[0].revision == "1234567"),
    ("inputs.0.revision", "null", lambda c: c.inputs[0].revision is None),
    ("run.artifacts", "[a.json, b.json]", lambda c: c.run.artifacts == ("a.json", "b.json")),
    ("run.env.SEED", "0012", lambda c: c.run.env["SEED"] == "0012"),
    ("run.resume", "false", lambda c: c.run.resume is False),
    ("job", "12", lambda c: c.job == "12"),
    ("project.entry_command", "python a.py: b", lambda c: c.project.entry_command.endswith(": b")),
    ("store", "s3://bucket/prefix", lambda c: c.store == "s3://bucket/prefix"),
]


@pytest.mark.parametrize(("key", "text", "holds"), OVERRIDES, ids=[row[0] for row in OVERRIDES])
def test_overrides(key: str, text: str, holds: Callable[[Contract], bool], write: Write) -> None:
    """`--set` reaches sections, list entries by index or name, and takes text as it stands."""
    path = write(
        {
            "inputs": [{"name": "base", "source": "folder", "path": "m", "revision": "abc"}],
            "host": {"gpus": [{"name": "any"}]},
        }
    )
    assert holds(load_contract(path, {key: text}))


BAD_OVERRIDES = [
    ("billing.max_totl", "5", "did you mean 'billing.max_total'?"),
    ("billing.max_total", "[", "expected a YAML value"),
    ("billing.max_total", "five", "found 'five'"),
    ("job.name", "x", "expected a section or list before 'name'"),
    ("inputs.other.path", "x", "expected an entry among 0"),
    ("billing..x", "1", "expected dotted keys"),
]


@pytest.mark.parametrize(("key", "text", "says"), BAD_OVERRIDES)
def test_bad_overrides(key: str, text: str, says: str, write: Write) -> None:
    """A `--set` that fits nowhere is refused by its own key."""
    with pytest.raises(errors.ContractInvalid) as caught:
        load_contract(write({"inputs": []}), {key: text})
    assert key in caught.value.line()
    assert says in caught.value.line()


def test_secret_in_an_override(write: Write) -> None:
    """A secret given on the command line is refused and not shown."""
    with pytest.raises(errors.GuardRefused) as caught:
        load_contract(write({}), {"project.entry_command": f"x --token {TOKEN}"})
    assert TOKEN not in str(caught.value.as_json())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_contract(write: Write) -> None:
    """A contract without read rights is a fault of one line."""
    path = write({})
    path.chmod(0)
    with pytest.raises(errors.ContractInvalid, match="unreadable contract"):
        load_contract(path)
