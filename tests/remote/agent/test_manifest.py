from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote.agent.errors import AgentError
from remote.agent.manifest import differences, scan_tree, tree_sha256


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A file, an executable, a link, an empty folder."""
    root = tmp_path / "tree"
    (root / "b c").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "b c" / "run.sh").write_text("x")
    (root / "b c" / "run.sh").chmod(0o750)
    (root / "a.txt").write_text("hello")
    (root / "link").symlink_to("b c/run.sh")
    return root


def test_entries_of_a_tree(tree: Path) -> None:
    """Files with bytes, digest and exec bit; links with their target; no folders; sorted."""
    entries = scan_tree(tree)
    assert [entry["path"] for entry in entries] == ["a.txt", "b c/run.sh", "link"]
    assert entries[0]["bytes"] == 5
    assert (entries[0]["mode"], entries[1]["mode"]) == ("644", "755")
    assert entries[2] == {"path": "link", "link": "b c/run.sh"}


def test_digest_ignores_order_and_other_mode_bits_only(tree: Path) -> None:
    """Order, group bits and times don't count; content, exec bit and link target do."""
    digest = tree_sha256(scan_tree(tree))
    assert tree_sha256(reversed(scan_tree(tree))) == digest
    (tree / "a.txt").chmod(0o600)
    os.utime(tree / "a.txt", (1, 1))
    assert tree_sha256(scan_tree(tree)) == digest
    (tree / "a.txt").chmod(0o744)
    assert tree_sha256(scan_tree(tree)) != digest
    (tree / "a.txt").chmod(0o644)
    (tree / "link").unlink()
    (tree / "link").symlink_to("a.txt")
    assert tree_sha256(scan_tree(tree)) != digest


def test_skip_leaves_out_files_and_whole_folders(tree: Path) -> None:
    """A skipped folder is not even entered."""
    found = scan_tree(tree, lambda path, folder: path == "b c" and folder)
    assert [entry["path"] for entry in found] == ["a.txt", "link"]


def test_devices_and_broken_names_are_refused(tree: Path) -> None:
    """A FIFO or a name that is not UTF-8 is named, never left out in silence."""
    os.mkfifo(tree / "pipe")
    with pytest.raises(AgentError, match="pipe"):
        scan_tree(tree)
    (tree / "pipe").unlink()
    with open(os.fsencode(tree) + b"/\xff", "wb"):
        pass
    with pytest.raises(AgentError, match="UTF-8"):
        scan_tree(tree)


def test_differences_name_each_path_once(tree: Path) -> None:
    """Changed, missing and additional files are told apart."""
    before = scan_tree(tree)
    (tree / "a.txt").write_text("other")
    (tree / "b c" / "run.sh").unlink()
    (tree / "new").write_text("")
    found = {item["path"]: item for item in differences(before, scan_tree(tree))}
    assert sorted(found) == ["a.txt", "b c/run.sh", "new"]
    assert found["b c/run.sh"]["found"] is None
    assert found["new"]["expected"] is None
