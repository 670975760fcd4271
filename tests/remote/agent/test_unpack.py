from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.errors import AgentError
from remote.agent.files import sha256_file
from remote.agent.layout import Layout
from remote.agent.manifest import scan_tree, tree_sha256

Ask = Callable[..., dict[str, Any]]


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def _payload(path: Path, members: list[Any]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with `project/`: a file, an executable, a link."""
    root = tmp_path / "tree"
    (root / "project" / "sub").mkdir(parents=True)
    (root / "project" / "train.py").write_text("print(1)\n")
    (root / "project" / "sub" / "run.sh").write_text("x")
    (root / "project" / "sub" / "run.sh").chmod(0o755)
    (root / "project" / "sub" / "again").symlink_to("../train.py")
    return root


@pytest.fixture
def wish(project: Path, tmp_path: Path) -> dict[str, Any]:
    """The fields of a request for that project's payload."""
    payload = tmp_path / "p a y.tar.gz"
    with tarfile.open(payload, "w:gz") as archive:
        archive.add(project / "project", "project")
    return {
        "payload": str(payload),
        "payload_sha256": sha256_file(payload),
        "tree_sha256": tree_sha256(scan_tree(project)),
    }


def test_payload_becomes_the_project(ask: Ask, layout: Layout, wish: dict[str, Any]) -> None:
    """The link leads to the real folder of the bundle; content, exec bit and link are there."""
    evidence = ask("unpack", **wish)["evidence"]
    assert evidence["project_dir"] == os.path.realpath(layout.project)
    assert evidence["files"] == 3
    assert evidence["restored"] == []
    assert tree_sha256(scan_tree(layout.bundle(wish["tree_sha256"]))) == wish["tree_sha256"]
    assert not os.path.isabs(os.readlink(layout.project))
    assert sorted(os.listdir(layout.bundles)) == [
        wish["tree_sha256"][:12],
        f"{wish['tree_sha256'][:12]}.manifest.json",
    ]


def test_another_hash_stops_before_extraction(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """One flipped byte: guard_refused, exit 2, nothing on the disk."""
    data = bytearray(Path(wish["payload"]).read_bytes())
    data[len(data) // 2] ^= 1
    Path(wish["payload"]).write_bytes(data)
    with pytest.raises(AgentError, match="hash differs") as caught:
        ask("unpack", **wish)
    assert (caught.value.kind, caught.value.exit_code) == ("guard_refused", 2)
    assert not layout.job_dir.exists()


def test_another_tree_leaves_nothing_visible(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """A payload of other files than were promised is refused, and nothing stays."""
    with pytest.raises(AgentError, match="tree differs") as caught:
        ask("unpack", **dict(wish, tree_sha256="0" * 64))
    assert caught.value.kind == "evidence_mismatch"
    assert os.listdir(layout.bundles) == []
    assert not layout.project.exists()


HOSTILE = {
    "absolute": [_member("/tmp/x")],
    "up": [_member("project/../../x")],
    "link up": [_member("project/l", tarfile.SYMTYPE, "../../x")],
    "link absolute": [_member("project/l", tarfile.SYMTYPE, "/etc")],
    "through a link": [_member("project/l", tarfile.SYMTYPE, "."), _member("project/l/x")],
    "over a link": [_member("project/l", tarfile.SYMTYPE, "x"), _member("project/l")],
    "hard link": [_member("project/a"), _member("project/b", tarfile.LNKTYPE, "project/a")],
    "device": [_member("project/d", tarfile.CHRTYPE)],
    "fifo": [_member("project/f", tarfile.FIFOTYPE)],
    "twice": [_member("project/a"), _member("project/a")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads(ask: Ask, layout: Layout, tmp_path: Path, name: str) -> None:
    """Whatever the hash says, nothing is written outside the bundle."""
    payload = _payload(tmp_path / "h.tar.gz", HOSTILE[name])
    with pytest.raises(AgentError) as caught:
        ask(
            "unpack",
            payload=str(payload),
            payload_sha256=sha256_file(payload),
            tree_sha256="0" * 64,
        )
    assert (caught.value.kind, caught.value.exit_code) == ("guard_refused", 2)
    assert os.listdir(layout.bundles) == []
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("data", [b"", b"not gzip", b"\x1f\x8b\x08\x00half"])
def test_damaged_payloads(ask: Ask, tmp_path: Path, data: bytes) -> None:
    """No archive, or half of one: one line, no traceback."""
    payload = tmp_path / "d.tar.gz"
    payload.write_bytes(data)
    with pytest.raises(AgentError, match="damaged"):
        ask(
            "unpack",
            payload=str(payload),
            payload_sha256=sha256_file(payload),
            tree_sha256="0" * 64,
        )


def test_a_second_unpack_repairs_what_was_changed(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """Edited, deleted and replaced files come back and are named; what the job added stays."""
    folder = Path(ask("unpack", **wish)["evidence"]["project_dir"])
    (folder / "train.py").write_text("print(2)\n")
    (folder / "sub" / "run.sh").unlink()
    (folder / "sub" / "again").unlink()
    (folder / "sub" / "again").mkdir()
    (folder / "output.txt").write_text("mine")
    again = ask("unpack", **wish)
    assert "replayed" not in again
    assert again["evidence"]["restored"] == [
        "project/sub/again",
        "project/sub/run.sh",
        "project/train.py",
    ]
    assert (folder / "train.py").read_text() == "print(1)\n"
    assert (folder / "output.txt").read_text() == "mine"
    assert ask("unpack", **wish)["replayed"] is True


def test_a_wiped_bundle_is_not_taken_for_unpacked(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """A recorded answer does not stand in for files; nor does a link in a folder's place."""
    import shutil

    ask("unpack", **wish)
    sub = layout.bundle(wish["tree_sha256"]) / "project" / "sub"
    moved = layout.data_root / "elsewhere"
    shutil.move(str(sub), str(moved))
    sub.symlink_to(moved)
    assert "replayed" not in ask("unpack", **wish)
    assert not sub.is_symlink()
    shutil.rmtree(layout.bundles)
    assert "replayed" not in ask("unpack", **wish)
    assert (layout.project / "train.py").exists()


def test_leftovers_of_a_killed_unpack_do_not_matter(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """A half-extracted folder from a killed agent is removed, not mixed in."""
    partial = layout.bundles / f".{wish['tree_sha256'][:12]}.partial" / "project"
    partial.mkdir(parents=True)
    (partial / "stale.py").write_text("x")
    folder = Path(ask("unpack", **wish)["evidence"]["project_dir"])
    assert not (folder / "stale.py").exists()


def test_new_code_switches_the_link(
    ask: Ask, layout: Layout, project: Path, wish: dict[str, Any], tmp_path: Path
) -> None:
    """The next bundle gets its own folder; the old one stays for what still runs in it."""
    old = ask("unpack", **wish)["evidence"]["project_dir"]
    (project / "project" / "train.py").write_text("print(3)\n")
    payload = tmp_path / "new.tar.gz"
    with tarfile.open(payload, "w:gz") as archive:
        archive.add(project / "project", "project")
    new = ask(
        "unpack",
        suffix="2",
        payload=str(payload),
        payload_sha256=sha256_file(payload),
        tree_sha256=tree_sha256(scan_tree(project)),
    )["evidence"]["project_dir"]
    assert os.path.realpath(layout.project) == new != old
    assert (Path(old) / "train.py").read_text() == "print(1)\n"


def test_a_foreign_project_folder_is_left_alone(
    ask: Ask, layout: Layout, wish: dict[str, Any]
) -> None:
    """A real folder where the link belongs is somebody's work."""
    layout.project.mkdir(parents=True)
    with pytest.raises(AgentError, match="not a link of ours"):
        ask("unpack", **wish)
