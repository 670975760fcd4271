"""The archive that the agent really writes, unpacked, checked and broken."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import EvidenceMismatch, GuardRefused, NotFound
from experiment.evidence.keys import signing_key
from experiment.evidence.seal import seal_archive
from experiment.evidence.verify import verify_path
from experiment.paths import Home
from experiment.results.archive import (
    check_inventory,
    refuse_secrets,
    require_artifacts,
    unpack_archive,
)
from remote.agent.archive import write_archive
from remote.agent.collect import run as collect_step
from remote.agent.files import canonical_json, sha256_file, write_json
from remote.agent.layout import Layout
from tests.experiment.evidence.sealed_folder import JOB, RUN_ID, chained, fill

NAME = f"{JOB}-results.tar.gz"


def pack(run_root: Path, archive: Path) -> Path:
    """Collect and archive with the agent's own steps; the sidecar as the controller writes it."""
    layout = Layout(run_root.parent, JOB, RUN_ID)
    listed = collect_step({"run_root": str(run_root)}, layout)
    inventory = run_root / "artifact_inventory.json"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.open("wb") as sink:
        sent = write_archive(run_root, inventory, listed["inventory_sha256"], sink.write)
    write_sidecar(archive, sent["sha256"], sent["bytes"])
    return archive


def write_sidecar(archive: Path, sha256: str | None = None, size: int | None = None) -> None:
    write_json(
        f"{archive}.json",
        {
            "status": "packaged",
            "archive": archive.name,
            "archive_bytes": archive.stat().st_size if size is None else size,
            "archive_sha256": sha256 or sha256_file(archive),
            "inventory": "artifact_inventory.json",
        },
    )


@pytest.fixture
def run_root(tmp_path: Path) -> Path:
    root = tmp_path / "data" / "run"
    root.mkdir(parents=True)
    fill(root)
    return root


@pytest.fixture
def archive(run_root: Path, tmp_path: Path) -> Path:
    return pack(run_root, tmp_path / "here" / NAME)


def test_what_the_agent_packs_unpacks_whole(archive: Path, tmp_path: Path) -> None:
    """Contents, exec bits, links and odd names arrive, beside what the folder held before."""
    dest = tmp_path / "results"
    dest.mkdir()
    (dest / "verifier.json").write_text("{}")
    evidence = unpack_archive(archive, dest)
    assert evidence == {"files": 9, "bytes": 4872}
    assert check_inventory(dest) == []
    assert (dest / "tool.sh").stat().st_mode & 0o777 == 0o755
    assert (dest / "model" / "größe 1.txt").read_bytes() == b"x"
    assert (dest / "checkpoints" / "latest").readlink() == Path("../model")
    assert (dest / "verifier.json").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".unpacking")] == []
    assert unpack_archive(archive, dest) == evidence


def test_a_later_collect_replaces_an_earlier_one(run_root: Path, tmp_path: Path) -> None:
    """What is gone from the run goes from the folder; a folder may have become a file or a link."""
    dest = tmp_path / "results"
    unpack_archive(pack(run_root, tmp_path / "a" / NAME), dest)
    (run_root / "summary.json").unlink()
    shutil.rmtree(run_root / "logs")
    (run_root / "logs").write_text("now a file")
    (run_root / "checkpoints" / "latest").unlink()
    (run_root / "checkpoints" / "latest").mkdir()
    (run_root / "checkpoints" / "latest" / "weights").write_text("w")
    unpack_archive(pack(run_root, tmp_path / "b" / NAME), dest)
    assert not (dest / "summary.json").exists()
    assert (dest / "logs").read_text() == "now a file"
    assert not (dest / "checkpoints" / "latest").is_symlink()
    assert (dest / "model" / "adapter.safetensors").exists()
    assert not (dest / "model" / "weights").exists()
    assert check_inventory(dest) == []


def crafted(path: Path, members: dict[str, Any], inventory: Any = None) -> Path:
    """A tar.gz of files (bytes), links (str) and devices (None)."""
    with tarfile.open(path, "w:gz") as tar:
        if inventory is not None:
            members = {"artifact_inventory.json": canonical_json(inventory), **members}
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.CHRTYPE if content is None else tarfile.SYMTYPE
            info.linkname = content or ""
            tar.addfile(info)
    return path


EMPTY = {"files": []}
UNSAFE: dict[str, tuple[dict[str, Any], Any, type[Exception]]] = {
    "absolute": ({"/tmp/charter-evil": b"x"}, EMPTY, GuardRefused),
    "parent": ({"../evil": b"x"}, EMPTY, GuardRefused),
    "through a link": ({"a": "..", "a/evil": b"x"}, EMPTY, GuardRefused),
    "link outside": ({"a": "/etc"}, EMPTY, GuardRefused),
    "device": ({"a": None}, EMPTY, GuardRefused),
    "unlisted": ({"extra": b"x"}, EMPTY, EvidenceMismatch),
    "no inventory": ({"a": b"x"}, None, EvidenceMismatch),
    "no list": ({}, {"files": 3}, EvidenceMismatch),
    "listed outside": ({}, {"files": [{"path": "../x", "sha256": "0" * 64}]}, EvidenceMismatch),
    "missing": ({}, {"files": [{"path": "x", "sha256": "0" * 64}]}, EvidenceMismatch),
    "other bytes": ({"x": b"1"}, {"files": [{"path": "x", "sha256": "0" * 64}]}, EvidenceMismatch),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_an_archive_that_is_not_what_it_says_leaves_nothing(name: str, tmp_path: Path) -> None:
    """Refused as a whole: no file of it reaches the results folder, or any other place."""
    members, inventory, kind = UNSAFE[name]
    path = crafted(tmp_path / NAME, members, inventory)
    dest = tmp_path / "in" / "results"
    with pytest.raises(kind):
        unpack_archive(path, dest)
    assert list(dest.iterdir()) == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "results", NAME]


def test_a_damaged_or_absent_archive(archive: Path, tmp_path: Path) -> None:
    """A cut archive is refused, an absent one is not found."""
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(GuardRefused):
        unpack_archive(archive, tmp_path / "results")
    with pytest.raises(NotFound) as absent:
        unpack_archive(tmp_path / "no.tar.gz", tmp_path / "results")
    assert absent.value.exit_code == 1


def test_check_inventory_names_what_differs(archive: Path, tmp_path: Path) -> None:
    """Changed, missing, made executable; what is not listed is none of its business."""
    dest = tmp_path / "results"
    unpack_archive(archive, dest)
    (dest / "unlisted").write_text("x")
    assert check_inventory(dest) == []
    (dest / "summary.json").write_bytes(b"{}")
    (dest / "metrics.jsonl").unlink()
    (dest / "model" / "empty").chmod(0o755)
    broken = check_inventory(dest)
    assert [item["path"] for item in broken] == ["metrics.jsonl", "model/empty", "summary.json"]
    assert {item["link"] for item in broken} == {"inventory"}
    (dest / "artifact_inventory.json").unlink()
    assert check_inventory(dest)[0]["found"] == "No such file or directory"


def test_required_artifacts_are_found_by_name(archive: Path, tmp_path: Path) -> None:
    """Files, folders and patterns; all missing ones are named at once."""
    dest = tmp_path / "results"
    unpack_archive(archive, dest)
    names = ["summary.json", "model", "model/*.safetensors", "logs/"]
    assert require_artifacts(dest, names) == names
    (dest / "late.json").write_text("{}")
    with pytest.raises(EvidenceMismatch) as missing:
        require_artifacts(dest, ["summary.json", "late.json", "evaluation"])
    assert missing.value.details == ("late.json: missing", "evaluation: missing")


def test_secrets_are_refused_here_too(archive: Path, tmp_path: Path) -> None:
    """File, line and kind are named, the value is not; binary files are reported as skipped."""
    dest = tmp_path / "results"
    unpack_archive(archive, dest)
    assert [item["path"] for item in refuse_secrets(dest)] == ["model/adapter.safetensors"]
    value = "hf_" + "aB3" * 12
    (dest / "logs" / "run.log").write_text(f"step 1\nlogin {value}\n")
    with pytest.raises(GuardRefused) as refused:
        refuse_secrets(dest)
    assert refused.value.details == ("logs/run.log:2 huggingface_token",)
    assert value not in str(refused.value)


def links(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(item["path"], item["link"]) for item in result["broken"]}


def test_verify_takes_the_archive_with_its_sidecar(archive: Path) -> None:
    """Whole, unsigned: nothing is unpacked, and nobody is named as signer."""
    result = verify_path(archive)
    assert result["ok"], result
    assert result["signer"] == {"key_id": None, "pinned": False}
    assert sorted(p.name for p in archive.parent.iterdir()) == [NAME, f"{NAME}.json"]


def test_any_flipped_byte_of_archive_or_sidecar_is_named(archive: Path) -> None:
    """The file that was changed is among those named, wherever the byte is."""
    for path in (archive, Path(f"{archive}.json")):
        data = path.read_bytes()
        step = max(1, len(data) // 60)
        for index in sorted({*range(0, len(data), step), *range(10), len(data) - 1}):
            changed = bytearray(data)
            changed[index] ^= 1
            path.write_bytes(bytes(changed))
            assert path.name in {p for p, _ in links(verify_path(archive))}, (path.name, index)
        path.write_bytes(data)
    assert verify_path(archive)["ok"]


def _forge(archive: Path, act: Callable[[dict[str, bytes]], Any]) -> None:
    """Pack anew with other contents and a sidecar that fits."""
    with tarfile.open(archive) as tar:
        members = {m.name: tar.extractfile(m) for m in tar if m.isreg()}
        contents = {name: handle.read() for name, handle in members.items() if handle}
        link_names = {m.name: m.linkname for m in tar if m.issym()}
    act(contents)
    crafted(archive, {**contents, **link_names})
    write_sidecar(archive)


FORGERIES: dict[str, tuple[Callable[[dict[str, bytes]], Any], set[tuple[str, str]]]] = {
    "changed": (lambda c: c.update({"summary.json": b"{}"}), {("summary.json", "inventory")}),
    "dropped": (lambda c: c.pop("metrics.jsonl"), {("metrics.jsonl", "inventory")}),
    "added": (lambda c: c.update(extra=b""), {("extra", "unlisted")}),
    "no inventory": (
        lambda c: c.pop("artifact_inventory.json"),
        {("artifact_inventory.json", "inventory")},
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_an_archive_packed_anew_is_seen_through_its_inventory(name: str, archive: Path) -> None:
    """A sidecar that fits does not help: the contents are re-hashed (the lost exec bit as well)."""
    act, expected = FORGERIES[name]
    _forge(archive, act)
    found = links(verify_path(archive))
    assert expected <= found
    assert found - expected <= {("tool.sh", "inventory")}


def test_a_signed_archive_has_a_signer(archive: Path, tmp_path: Path) -> None:
    """The statement beside the archive covers both files and can be pinned."""
    key = signing_key(Home(tmp_path / "home"))
    other = signing_key(Home(tmp_path / "other"))
    unsigned = verify_path(archive, key.public_path)
    assert links(unsigned) == {(f"{NAME}.dsse.json", "signature")}
    evidence = seal_archive(archive, job=JOB, run_id=RUN_ID, key=key)
    assert evidence["statement"] == f"{NAME}.dsse.json"
    assert verify_path(archive, key.public_path)["signer"] == {
        "key_id": key.key_id,
        "pinned": True,
    }
    assert links(verify_path(archive, other.public_path)) == {(f"{NAME}.dsse.json", "signature")}
    _forge(archive, lambda contents: contents.update({"summary.json": b"{}"}))
    assert links(verify_path(archive)) == {(NAME, "file"), (f"{NAME}.json", "file")}
    with pytest.raises(NotFound):
        seal_archive(tmp_path / "no.tar.gz", job=JOB, run_id=RUN_ID, key=key)


def test_sidecars_without_sense_are_told(archive: Path, tmp_path: Path) -> None:
    """Absent, of another archive, of another form: the sidecar is the broken thing."""
    sidecar = Path(f"{archive}.json")
    good = json.loads(sidecar.read_text())
    for change in ({"status": "x"}, {"archive": "y"}, {"inventory": "z"}, {"archive_bytes": 1}):
        write_json(sidecar, {**good, **change})
        assert sidecar.name in {p for p, _ in links(verify_path(archive))}, change
    sidecar.write_text(json.dumps(good))
    assert links(verify_path(archive)) == {(sidecar.name, "file")}
    sidecar.unlink()
    assert links(verify_path(archive)) == {(sidecar.name, "file")}


def test_the_folder_s_own_files_may_shadow_the_run_s(tmp_path: Path) -> None:
    """A run that wrote a `manifest.json` too: the controller's one is in the folder and sealed."""
    from experiment.evidence.seal import seal

    run_root = tmp_path / "data" / "run"
    run_root.mkdir(parents=True)
    (run_root / "manifest.json").write_text('{"split": "train"}')
    dest = tmp_path / "results"
    unpack_archive(pack(run_root, tmp_path / "a" / NAME), dest)
    (dest / "manifest.json").write_text('{"status": "ready"}')
    key = signing_key(Home(tmp_path / "home"))
    seal(dest, job=JOB, run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert verify_path(dest)["ok"]
