from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiment.bundle import build, build_bundle, verify_payload
from experiment.errors import EvidenceMismatch, GuardRefused
from remote.agent.manifest import scan_tree, tree_sha256
from tests.experiment.bundle.trees import TOKEN, contract_for, grow

TREE = {
    "train.py": "print('x')\n",
    "run.sh": "#!/bin/sh\n",
    "data/rows.jsonl": "{}\n" * 1000,
    "link": "-> data/rows.jsonl",
    "deep/" * 30 + "ünï/" + "n" * 200: "long",
    "empty": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = grow(tmp_path / "p", TREE)
    (root / "run.sh").chmod(0o751)
    return root


def test_payload_opens_with_any_tar(project: Path, tmp_path: Path) -> None:
    """The standard library extracts it, and the tree there has the digest that was promised."""
    bundle = build_bundle(contract_for(project), tmp_path / "out")
    assert hashlib.sha256(bundle.payload.read_bytes()).hexdigest() == bundle.payload_sha256
    with tarfile.open(bundle.payload, "r:gz") as archive:
        infos = archive.getmembers()
        archive.extractall(tmp_path / "x", filter="data")
    assert {(info.uid, info.gid, info.mtime, info.uname, info.gname) for info in infos} == {
        (0, 0, 0, "", "")
    }
    assert {info.mode for info in infos if info.isreg()} == {0o644, 0o755}
    assert [info.name for info in infos] == sorted(info.name for info in infos)
    entries = scan_tree(tmp_path / "x")
    assert entries == bundle.manifest["entries"]
    assert tree_sha256(entries) == bundle.tree_sha256
    assert os.readlink(tmp_path / "x/project/link") == "data/rows.jsonl"
    assert bundle.manifest["project_file_count"] == len(TREE)


def test_payload_carries_our_programs(project: Path, tmp_path: Path) -> None:
    """Agent, trainers and probes travel in .autodl, as they are in the clone."""
    bundle = build_bundle(contract_for(project), tmp_path / "out")
    paths = {entry["path"] for entry in bundle.manifest["entries"]}
    assert "project/.autodl/agent.pyz" in paths
    assert "project/.autodl/trainers/grpo.py" in paths
    assert not any("__pycache__" in path for path in paths)


def test_gzip_header_names_no_time_and_no_file(project: Path, tmp_path: Path) -> None:
    """The ten bytes of the header are constant."""
    bundle = build_bundle(contract_for(project), tmp_path / "out")
    assert bundle.payload.read_bytes()[:10] == bytes([31, 139, 8, 0, 0, 0, 0, 0, 0, 255])


# Backslashes are left out: git and macOS have their own opinion of them in names.
FILE_NAMES = st.text(
    st.characters(blacklist_characters="/\0\\", blacklist_categories=["Cs"]), min_size=1
).filter(lambda name: len(name.encode()) < 200 and name not in (".", "..", ".gitignore"))


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    contents=st.dictionaries(
        FILE_NAMES,
        st.binary(max_size=3000),
        min_size=1,
        max_size=6,
    ),
    order=st.randoms(use_true_random=False),
)
def test_same_tree_same_bytes(
    contents: dict[str, bytes], order: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Copies made in another order, at another time, with other rights, give one payload."""
    folder = tmp_path_factory.mktemp("twice")
    names = list(contents)
    bundles = []
    for copy in ("one", "two"):
        root = folder / copy / "p"
        root.mkdir(parents=True)
        (root / "always.py").write_text("x")
        order.shuffle(names)  # type: ignore[attr-defined]
        for name in names:
            (root / name).write_bytes(contents[name])
            os.chmod(root / name, 0o600 if copy == "one" else 0o644)
            os.utime(root / name, (1, 1) if copy == "one" else (2_000_000_000, 2_000_000_000))
        bundles.append(build_bundle(contract_for(root), folder / copy / "out"))
    assert bundles[0].payload.read_bytes() == bundles[1].payload.read_bytes()
    assert bundles[0].tree_sha256 == bundles[1].tree_sha256
    assert gzip.decompress(bundles[0].payload.read_bytes())


def test_secrets_are_named_and_not_shown(project: Path, tmp_path: Path) -> None:
    """Every hit is FILE:LINE KIND; nothing is written, not even the folder."""
    grow(project, {"a.txt": f"x\nhere {TOKEN}\n", "sub/b.py": f'T = "{TOKEN}"\n', "ok": "task-1\n"})
    with pytest.raises(GuardRefused) as caught:
        build_bundle(contract_for(project), tmp_path / "out")
    assert caught.value.details == (
        "a.txt:2 huggingface_token",
        "sub/b.py:1 huggingface_token",
    )
    assert caught.value.thing == "a.txt:2 huggingface_token"
    assert TOKEN not in str(caught.value.as_json())
    assert not (tmp_path / "out").exists()


def test_binary_files_are_said_to_be_unscanned(project: Path, tmp_path: Path) -> None:
    """What was not searched for secrets is listed with the reason."""
    (project / "b.dat").write_bytes(b"\0" + TOKEN.encode())
    bundle = build_bundle(contract_for(project), tmp_path / "out")
    assert bundle.unscanned == [{"path": "b.dat", "reason": "binary"}]


def test_output_inside_the_project(project: Path, tmp_path: Path) -> None:
    """A bundle written into the project is no part of the next one."""
    first = build_bundle(contract_for(project), project)
    grow(project, {"tree-autodl-manifest.json": "{}", "home/ledger.sqlite": "x"})
    second = build_bundle(contract_for(project), project, skip=[project / "home"])
    assert first.payload_sha256 == second.payload_sha256
    assert second.excluded == {"fixed": 3}


def test_a_changed_payload_is_noticed(project: Path, tmp_path: Path) -> None:
    """Reading back names the member that differs, or says that nothing can be read."""
    bundle = build_bundle(contract_for(project), tmp_path / "out")
    entries = bundle.manifest["entries"]
    assert verify_payload(bundle.payload, entries) == bundle.payload_sha256
    changed = [dict(entry) for entry in entries]
    changed[-1]["sha256"] = "0" * 64
    with pytest.raises(EvidenceMismatch, match=changed[-1]["path"]):
        verify_payload(bundle.payload, changed)
    with pytest.raises(EvidenceMismatch):
        verify_payload(bundle.payload, entries[:-1])
    data = bundle.payload.read_bytes()
    bundle.payload.write_bytes(data[: len(data) // 2])
    with pytest.raises(EvidenceMismatch, match="can't be read back"):
        verify_payload(bundle.payload, entries)


def test_a_file_that_changes_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file written to while it is packed is named; no payload appears."""
    target = project / "data/rows.jsonl"
    real = build.Scanner.feed

    def feed(self: build.Scanner, data: bytes) -> None:
        if data.startswith(b"{}"):
            with open(target, "ab") as stream:
                stream.write(b"more")
        real(self, data)

    monkeypatch.setattr(build.Scanner, "feed", feed)
    with pytest.raises(GuardRefused, match=r"changed while it was read: data/rows\.jsonl"):
        build_bundle(contract_for(project), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_secret_in_a_command(project: Path, tmp_path: Path) -> None:
    """A command changed after loading is scanned again before anything is packed."""
    contract = contract_for(project)
    changed = contract.model_copy(
        update={"project": contract.project.model_copy(update={"entry_command": f"x {TOKEN}"})}
    )
    with pytest.raises(GuardRefused, match=r"project\.entry_command") as caught:
        build_bundle(changed, tmp_path / "out")
    assert TOKEN not in str(caught.value.as_json())
