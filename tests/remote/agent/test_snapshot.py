from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.errors import AgentError
from remote.agent.files import read_json
from remote.agent.layout import Layout
from remote.agent.snapshot import MARKER, reproducible

Ask = Callable[..., dict[str, Any]]
CONTENT = {"config.json": b"{}", "sub/model.safetensors": b"\0weights"}


@pytest.fixture
def item(layout: Layout) -> dict[str, Any]:
    """An uploaded model and the input that promises it."""
    folder = layout.models / "org-tiny-abc"
    for path, data in CONTENT.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return {
        "name": "base",
        "kind": "model",
        "source": "folder",
        "id": "org/tiny",
        "revision": None,
        "quantization": None,
        "path": str(folder),
        "files": [
            {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in CONTENT.items()
        ],
    }


def test_marker_is_written_when_all_files_agree(ask: Ask, item: dict[str, Any]) -> None:
    """The keys of R4; the second time the snapshot is reused."""
    first = ask("snapshot", inputs=[item])["evidence"]["inputs"][0]
    marker = read_json(Path(item["path"]) / MARKER)
    assert marker["status"] == "completed"
    assert marker["source_model_id"] == "org/tiny"
    assert marker["bytes"] == first["bytes"] == 10
    assert [entry["path"] for entry in marker["files"]] == sorted(CONTENT)
    for key in ("schema_version", "source_hub", "revision", "resolved", "seconds"):
        assert key in marker
    assert first["reused"] is False
    assert first["files"] == 2
    again = ask("snapshot", suffix="2", inputs=[item])["evidence"]["inputs"][0]
    assert again["reused"] is True
    assert again["tree_sha256"] == first["tree_sha256"]


FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: (folder / "config.json").unlink(),
    "size_mismatch": lambda folder: (folder / "config.json").write_bytes(b"{} "),
    "sha256_mismatch": lambda folder: (folder / "config.json").write_bytes(b"[]"),
    "unexpected": lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_disagrees_takes_the_marker_away(
    ask: Ask, item: dict[str, Any], fault: str
) -> None:
    """Exit 2, the file and what is wrong named; the folder is no longer complete."""
    folder = Path(item["path"])
    ask("snapshot", inputs=[item])
    FAULTS[fault](folder)
    with pytest.raises(AgentError, match=fault) as caught:
        ask("snapshot", suffix="2", inputs=[item])
    assert (caught.value.kind, caught.value.exit_code) == ("evidence_mismatch", 2)
    assert "config.json" in caught.value.message or "pytorch_model.bin" in caught.value.message
    assert not (folder / MARKER).exists()


def test_hidden_leftovers_of_downloads_do_not_count(ask: Ask, item: dict[str, Any]) -> None:
    """Partial downloads and hub caches are no files of the model."""
    (Path(item["path"]) / ".cache").mkdir()
    (Path(item["path"]) / ".cache" / "x.incomplete").write_bytes(b"half")
    assert ask("snapshot", inputs=[item])["ok"]


@pytest.mark.parametrize(
    "other", [{"id": "org/other"}, {"revision": "main"}, {"source": "huggingface"}]
)
def test_a_marker_of_another_model_is_not_accepted(
    ask: Ask, item: dict[str, Any], other: dict[str, Any]
) -> None:
    """Another id, revision or hub: checked and marked anew, not reused."""
    ask("snapshot", inputs=[item])
    evidence = ask("snapshot", suffix="2", inputs=[dict(item, **other)])["evidence"]
    assert evidence["inputs"][0]["reused"] is False


def test_a_damaged_marker_counts_as_none(ask: Ask, item: dict[str, Any]) -> None:
    """Half a marker is no completion."""
    marker = Path(item["path"]) / MARKER
    marker.write_text('{"status": "completed"')
    assert ask("snapshot", inputs=[item])["evidence"]["inputs"][0]["reused"] is False
    assert read_json(marker)["status"] == "completed"


def test_a_recorded_answer_holds_only_while_the_files_do(ask: Ask, item: dict[str, Any]) -> None:
    """The same request after a file went is checked again, and fails."""
    ask("snapshot", inputs=[item])
    assert ask("snapshot", inputs=[item])["replayed"] is True
    (Path(item["path"]) / "config.json").unlink()
    with pytest.raises(AgentError, match="missing"):
        ask("snapshot", inputs=[item])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"files": []}, "usage"),
        ({"files": [{"path": "../x", "bytes": 0, "sha256": ""}]}, "usage"),
        ({"path": "/etc"}, "guard_refused"),
    ],
)
def test_wrong_inputs(ask: Ask, item: dict[str, Any], change: dict[str, Any], kind: str) -> None:
    """An empty snapshot, a path that leads out, a folder outside the data root."""
    with pytest.raises(AgentError) as caught:
        ask("snapshot", inputs=[dict(item, **change)])
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("revision", "fixed"),
    [
        (None, False),
        ("main", False),
        ("v1.0", False),
        ("0123456789abcdef" * 4, True),
        ("a" * 40, True),
    ],
)
def test_only_a_commit_is_reproducible(revision: object, fixed: bool) -> None:
    """Branches and tags can move."""
    assert reproducible(revision) is fixed
