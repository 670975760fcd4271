from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.errors import AgentError
from remote.agent.files import read_json, sha256_file
from remote.agent.layout import Layout

Ask = Callable[..., dict[str, Any]]
PLANTED = "hf_" + "abcdefghijklmnopqrstuvwxyz12"
PATTERNS: dict[str, list[str]] = {"include": [], "exclude": [], "artifacts": []}


@pytest.fixture
def root(layout: Layout) -> Path:
    """A finished run: log, summary, a checkpoint with a link to it, a binary model."""
    path = layout.run_root().path
    (path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (path / "run.log").write_text("step 1\nstep 2\n")
    (path / "summary.json").write_text("{}")
    (path / "checkpoints" / "checkpoint-2" / "w.pt").write_bytes(b"\0" * 1000)
    (path / "checkpoints" / "last").symlink_to("checkpoint-2")
    (path / "tool").write_text("x")
    (path / "tool").chmod(0o755)
    return path


def test_inventory_lists_every_file(ask: Ask, root: Path) -> None:
    """Bytes and digest per file, exec bits, links; itself left out; digest and counts agree."""
    evidence = ask("collect", run_root=str(root), **PATTERNS)["evidence"]
    inventory = read_json(root / "artifact_inventory.json")
    assert evidence["inventory_sha256"] == sha256_file(evidence["inventory"])
    by_path = {entry["path"]: entry for entry in inventory["files"]}
    assert sorted(by_path) == [
        "checkpoints/checkpoint-2/w.pt",
        "checkpoints/last",
        "run.log",
        "summary.json",
        "tool",
    ]
    assert by_path["run.log"]["sha256"] == sha256_file(root / "run.log")
    assert by_path["tool"]["mode"] == "755"
    assert by_path["checkpoints/last"] == {"path": "checkpoints/last", "link": "checkpoint-2"}
    assert evidence["file_count"] == inventory["file_count"] == 5
    assert evidence["total_bytes"] == 14 + 2 + 1000 + 1
    for key in ("schema_version", "status", "run_root", "secret_scan", "inventory_self_excluded"):
        assert key in inventory


def test_binary_files_are_reported_as_not_scanned(ask: Ask, root: Path) -> None:
    """Archived, and named with the reason."""
    evidence = ask("collect", run_root=str(root), **PATTERNS)["evidence"]
    assert evidence["skipped"] == [{"path": "checkpoints/checkpoint-2/w.pt", "reason": "binary"}]


def test_a_secret_stops_everything(ask: Ask, root: Path) -> None:
    """Exit 2; file, line and kind are named, the value is not; no inventory, old or new."""
    ask("collect", run_root=str(root), **PATTERNS)
    with (root / "run.log").open("a") as log:
        log.write(f"login with {PLANTED}\n")
    with pytest.raises(AgentError) as caught:
        ask("collect", run_root=str(root), **PATTERNS)
    error = caught.value
    assert (error.kind, error.exit_code) == ("guard_refused", 2)
    assert "run.log:3 huggingface_token" in error.message
    assert PLANTED not in str(error.as_json())
    assert not (root / "artifact_inventory.json").exists()


def test_patterns_choose_but_never_drop_records_or_artifacts(ask: Ask, root: Path) -> None:
    """`exclude` and `include` hold for the rest; what is left out is listed."""
    evidence = ask(
        "collect",
        run_root=str(root),
        include=["checkpoints"],
        exclude=["run.log", "*.pt", "last"],
        artifacts=["*.pt", "report.md"],
    )["evidence"]
    paths = [entry["path"] for entry in read_json(evidence["inventory"])["files"]]
    assert paths == ["checkpoints/checkpoint-2/w.pt", "run.log", "summary.json"]
    assert {item["path"] for item in evidence["left_out"]} == {"checkpoints/last", "tool"}
    assert evidence["artifacts"] == {"present": ["*.pt"], "missing": ["report.md"]}


def test_links_out_and_devices_are_left_out_with_a_reason(ask: Ask, root: Path) -> None:
    """Never followed, never silent."""
    (root / "abs").symlink_to("/etc/passwd")
    (root / "up").symlink_to("../../../x")
    (root / "gone").symlink_to("nothing")
    os.mkfifo(root / "pipe")
    evidence = ask("collect", run_root=str(root), **PATTERNS)["evidence"]
    assert {item["path"] for item in evidence["left_out"]} == {"abs", "up", "gone", "pipe"}
    assert evidence["file_count"] == 5


def test_no_run_no_inventory(ask: Ask, layout: Layout) -> None:
    """A missing run root is not_found, exit 3; one outside the data root is refused."""
    with pytest.raises(AgentError) as caught:
        ask("collect", **PATTERNS)
    assert (caught.value.kind, caught.value.exit_code) == ("not_found", 3)
    with pytest.raises(AgentError) as caught:
        ask("collect", run_root="/etc", **PATTERNS)
    assert caught.value.kind == "guard_refused"
