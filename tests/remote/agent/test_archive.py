from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.archive import write_archive
from remote.agent.errors import AgentError
from remote.agent.files import read_json
from remote.agent.layout import Layout
from remote.agent.pack import build_agent

Ask = Callable[..., dict[str, Any]]
LONG = "deep/" * 30 + "näme with spaces.txt"


@pytest.fixture
def root(layout: Layout) -> Path:
    """A run with a long name, an executable, a link and more than one chunk of bytes."""
    path = layout.run_root().path
    (path / LONG).parent.mkdir(parents=True)
    (path / LONG).write_text("deep")
    (path / "big").write_bytes(bytes(range(256)) * 10_000)
    (path / "tool").write_text("#!/bin/sh\n")
    (path / "tool").chmod(0o755)
    (path / "last").symlink_to("big")
    return path


@pytest.fixture
def listed(ask: Ask, root: Path) -> str:
    """The digest of the run's inventory."""
    patterns: dict[str, list[str]] = {"include": [], "exclude": [], "artifacts": []}
    return str(ask("collect", run_root=str(root), **patterns)["evidence"]["inventory_sha256"])


def _written(root: Path, listed: str) -> tuple[bytes, dict[str, Any]]:
    buffer = io.BytesIO()
    evidence = write_archive(root, root / "artifact_inventory.json", listed, buffer.write)
    return buffer.getvalue(), evidence


def test_archive_holds_the_inventory_and_its_files(root: Path, listed: str) -> None:
    """Inventory first, then files sorted, with content, exec bit and links; hash and size agree."""
    data, evidence = _written(root, listed)
    assert evidence["bytes"] == len(data)
    assert evidence["sha256"] == hashlib.sha256(data).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert names == ["artifact_inventory.json", "big", LONG, "last", "tool"]
        big = archive.extractfile("big")
        assert big is not None
        assert big.read() == (root / "big").read_bytes()
        assert archive.getmember("last").linkname == "big"
        assert archive.getmember("tool").mode == 0o755
        assert {member.mtime for member in archive} == {0}
    assert evidence["files"] == 4


def test_same_run_same_bytes(root: Path, listed: str) -> None:
    """Times and owners leave no trace."""
    first, _ = _written(root, listed)
    (root / "big").touch()
    assert _written(root, listed)[0] == first


@pytest.mark.parametrize("change", ["grown", "shrunk", "edited", "gone", "relinked"])
def test_a_changed_file_spoils_the_archive(root: Path, listed: str, change: str) -> None:
    """The file is named; there is no evidence."""
    big = root / "big"
    name = "big"
    if change == "grown":
        big.write_bytes(big.read_bytes() + b"x")
    elif change == "shrunk":
        big.write_bytes(b"x")
    elif change == "edited":
        big.write_bytes(b"y" + big.read_bytes()[1:])
    elif change == "gone":
        big.unlink()
    else:
        (root / "last").unlink()
        (root / "last").symlink_to("tool")
        name = "last"
    with pytest.raises(AgentError, match=name) as caught:
        _written(root, listed)
    assert caught.value.kind == "evidence_mismatch"


def test_another_inventory_is_refused(root: Path, listed: str) -> None:
    """An edited or missing inventory, or one that names files outside, makes no archive."""
    inventory = root / "artifact_inventory.json"
    content = read_json(inventory)
    content["files"].append({"path": "../../x", "bytes": 0, "sha256": ""})
    inventory.write_text(json.dumps(content))
    with pytest.raises(AgentError, match="changed"):
        _written(root, listed)
    with pytest.raises(AgentError, match="outside"):
        _written(root, hashlib.sha256(inventory.read_bytes()).hexdigest())
    inventory.unlink()
    with pytest.raises(AgentError, match="missing"):
        _written(root, listed)


@pytest.fixture
def started(
    root: Path, listed: str, envelope: Callable[..., dict[str, Any]], tmp_path: Path
) -> list[str]:
    """The command line that streams this run's archive."""
    (tmp_path / "agent.pyz").write_bytes(build_agent())
    asked = envelope("archive", run_root=str(root), inventory_sha256=listed)
    (tmp_path / "q.json").write_text(json.dumps(asked))
    names = ["q.json", "a.json"]
    return [
        sys.executable,
        "-I",
        str(tmp_path / "agent.pyz"),
        "archive",
        *(str(tmp_path / name) for name in names),
    ]


def test_the_stream_is_stdout(root: Path, listed: str, started: list[str], tmp_path: Path) -> None:
    """The process writes exactly the archive to stdout and its evidence to the answer."""
    done = subprocess.run(started, capture_output=True, timeout=60, check=True)
    assert done.stdout == _written(root, listed)[0]
    assert (
        read_json(tmp_path / "a.json")["evidence"]["sha256"]
        == hashlib.sha256(done.stdout).hexdigest()
    )


def test_a_reader_that_goes_away(root: Path, started: list[str], tmp_path: Path, ask: Ask) -> None:
    """A closed pipe is a known failure, without a traceback."""
    import os
    import random

    (root / "noise").write_bytes(random.Random(1).randbytes(2_000_000))
    patterns: dict[str, list[str]] = {"include": [], "exclude": [], "artifacts": []}
    listed = ask("collect", run_root=str(root), **patterns)["evidence"]["inventory_sha256"]
    asked = read_json(tmp_path / "q.json")
    (tmp_path / "q.json").write_text(json.dumps(dict(asked, inventory_sha256=listed)))
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(30) == 1
    assert "Traceback" not in errors
    assert read_json(tmp_path / "a.json")["error"]["kind"] == "remote_step_failed"
