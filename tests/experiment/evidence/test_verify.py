"""A sealed folder broken in every way: exit 2, and the broken thing is named."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment.evidence import verify
from experiment.evidence.chain import ledger_bytes
from experiment.evidence.keys import SigningKey, known_keys, signing_key
from experiment.evidence.seal import seal
from experiment.evidence.verify import VerifyError, load_public_key, main, verify_path
from experiment.paths import Home
from remote.agent.files import canonical_json
from tests.experiment.evidence.sealed_folder import JOB, RUN_ID, chained, sealed

SEAL = "evidence/seal.dsse.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SigningKey]:
    return sealed(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def folder(original: tuple[Path, SigningKey], tmp_path: Path) -> Path:
    return Path(shutil.copytree(original[0], tmp_path / "copy", symlinks=True))


def files_of(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def flip(path: Path, index: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= bits
    path.write_bytes(bytes(data))


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def links(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(item["path"], item["link"]) for item in result["broken"]}


def test_a_whole_folder_is_ok(folder: Path, original: tuple[Path, SigningKey]) -> None:
    """The JSON of the interface page, with the signer pinned or not."""
    result = verify_path(folder)
    assert result == {
        "ok": True,
        "checked": 26,
        "broken": [],
        "signer": {"key_id": original[1].key_id, "pinned": False},
    }
    assert verify_path(folder, original[1].public_path)["signer"]["pinned"] is True
    assert verify_path(folder, None, [original[1].public_path])["signer"]["pinned"] is True


def test_any_flipped_byte_of_any_file_is_named(folder: Path) -> None:
    """First, middle and last byte of every file, the seal, the key and verify.py included."""
    names = files_of(folder)
    assert {SEAL, "evidence/signer.pub", "verify.py", "ledger.jsonl"} <= set(names)
    for name in names:
        size = (folder / name).stat().st_size
        for index in sorted({0, size // 2, size - 1}) if size else ():
            flip(folder / name, index)
            result = verify_path(folder)
            assert not result["ok"], (name, index)
            assert {item["path"] for item in result["broken"]} == {name}, (name, index)
            flip(folder / name, index)
    assert verify_path(folder)["ok"]


def test_random_flips_are_named(folder: Path) -> None:
    """A hundred random bits of random files, the seal twice as often as by chance."""
    chance = random.Random(20260101)
    names = [name for name in files_of(folder) if (folder / name).stat().st_size]
    for _ in range(100):
        name = chance.choice([*names, SEAL])
        index = chance.randrange((folder / name).stat().st_size)
        bits = 1 << chance.randrange(8)
        flip(folder / name, index, bits)
        result = verify_path(folder)
        assert {item["path"] for item in result["broken"]} == {name}, (name, index, bits)
        flip(folder / name, index, bits)
    assert verify_path(folder)["ok"]


def test_every_byte_of_the_seal_counts(folder: Path) -> None:
    """Base64 has spare bits and JSON has spare spaces: none of them goes unseen."""
    size = (folder / SEAL).stat().st_size
    for index in [*range(0, size - 240, 97), *range(size - 240, size)]:
        flip(folder / SEAL, index)
        assert {item["path"] for item in verify_path(folder)["broken"]} == {SEAL}, index
        flip(folder / SEAL, index)


def _drop_tail(folder: Path) -> None:
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))


def _pretty_seal(folder: Path) -> None:
    value = json.loads((folder / SEAL).read_bytes())
    (folder / SEAL).write_text(json.dumps(value, indent=1))


def _seal_with_more(folder: Path) -> None:
    value = json.loads((folder / SEAL).read_bytes())
    (folder / SEAL).write_bytes(canonical_json({**value, "note": "x"}))


def _two_signatures(folder: Path) -> None:
    value = json.loads((folder / SEAL).read_bytes())
    value["signatures"] *= 2
    (folder / SEAL).write_bytes(canonical_json(value))


def _link_for_file(folder: Path) -> None:
    (folder / "summary.json").rename(folder.parent / "away.json")
    (folder / "summary.json").symlink_to("../away.json")


def _relink(folder: Path) -> None:
    (folder / "checkpoints" / "latest").unlink()
    (folder / "checkpoints" / "latest").symlink_to("../logs")


def _folder_for_link(folder: Path) -> None:
    (folder / "checkpoints" / "latest").unlink()
    shutil.copytree(folder / "model", folder / "checkpoints" / "latest")


def _linked_seal(folder: Path) -> None:
    (folder / SEAL).rename(folder.parent / "seal")
    (folder / SEAL).symlink_to("../../seal")


BREAKS: dict[str, tuple[Callable[[Path], Any], set[tuple[str, str]]]] = {
    "changed file": (lambda f: flip(f / "summary.json", 3), {("summary.json", "file")}),
    "longer file": (
        lambda f: append(f / "logs/run.log", b"\n"),
        {("logs/run.log", "file")},
    ),
    "emptied file": (lambda f: (f / "summary.json").write_bytes(b""), {("summary.json", "file")}),
    "dropped file": (lambda f: (f / "summary.json").unlink(), {("summary.json", "file")}),
    "dropped inventory": (
        lambda f: (f / "artifact_inventory.json").unlink(),
        {("artifact_inventory.json", "file")},
    ),
    "dropped ledger": (lambda f: (f / "ledger.jsonl").unlink(), {("ledger.jsonl", "file")}),
    "dropped tail": (
        _drop_tail,
        {("ledger.jsonl", "file"), ("ledger.jsonl", "seal")},
    ),
    "added file": (lambda f: (f / "new").write_bytes(b""), {("new", "unlisted")}),
    "added hidden file": (
        lambda f: (f / "model" / ".x").write_bytes(b"1"),
        {("model/.x", "unlisted")},
    ),
    "added link": (lambda f: (f / "new").symlink_to("nowhere"), {("new", "unlisted")}),
    "added pipe": (lambda f: os.mkfifo(f / "pipe"), {("pipe", "unlisted")}),
    "renamed": (
        lambda f: (f / "summary.json").rename(f / "Summary.json"),
        {("summary.json", "file"), ("Summary.json", "unlisted")},
    ),
    "exec bit set": (lambda f: (f / "summary.json").chmod(0o755), {("summary.json", "file")}),
    "exec bit lost": (lambda f: (f / "tool.sh").chmod(0o644), {("tool.sh", "file")}),
    "link for a file": (_link_for_file, {("summary.json", "file")}),
    "other target": (_relink, {("checkpoints/latest", "file")}),
    "folder for a link": (
        _folder_for_link,
        {
            ("checkpoints/latest", "file"),
            ("checkpoints/latest/adapter.safetensors", "unlisted"),
            ("checkpoints/latest/empty", "unlisted"),
            ("checkpoints/latest/größe 1.txt", "unlisted"),
        },
    ),
    "no seal": (lambda f: (f / SEAL).unlink(), {(SEAL, "seal")}),
    "truncated seal": (lambda f: os.truncate(f / SEAL, 200), {(SEAL, "seal")}),
    "empty seal": (lambda f: (f / SEAL).write_bytes(b""), {(SEAL, "seal")}),
    "seal with a newline": (lambda f: append(f / SEAL, b"\n"), {(SEAL, "seal")}),
    "pretty seal": (_pretty_seal, {(SEAL, "seal")}),
    "seal with more": (_seal_with_more, {(SEAL, "seal")}),
    "two signatures": (_two_signatures, {(SEAL, "seal")}),
    "deep nonsense": (lambda f: (f / SEAL).write_bytes(b"[" * 100000), {(SEAL, "seal")}),
    "linked seal": (_linked_seal, {(SEAL, "seal")}),
    "executable seal": (lambda f: (f / SEAL).chmod(0o755), {(SEAL, "seal")}),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_kind_of_break_is_named(name: str, folder: Path) -> None:
    """Exactly the broken thing is named, by the right link."""
    act, expected = BREAKS[name]
    act(folder)
    result = verify_path(folder)
    assert not result["ok"]
    assert links(result) == expected, result["broken"]


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o400])
def test_other_mode_bits_do_not_count(folder: Path, mode: int) -> None:
    """Umasks differ; only the exec bit is evidence."""
    (folder / "summary.json").chmod(mode)
    (folder / "empty folder").mkdir()
    assert verify_path(folder)["ok"]


def test_a_changed_ledger_line_names_the_entry(folder: Path) -> None:
    """A forged value is found by the file's digest and by the entry's own."""
    path = folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"reward":0.2', b'"reward":0.9'))
    result = verify_path(folder)
    assert ("ledger.jsonl", "entry") in links(result)
    assert ("ledger.jsonl", "file") in links(result)
    assert any("entry 2" in item["expected"] for item in result["broken"])


def test_an_inventory_that_lied_before_the_seal_is_named(tmp_path: Path) -> None:
    """Sealing does not bless a collected file that never matched its inventory."""
    folder, key = sealed(tmp_path)
    (folder / "summary.json").write_bytes(b'{"reward": 1.0}')
    seal(folder, job=JOB, run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert links(verify_path(folder)) == {("summary.json", "inventory")}


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"files": [1]}', b'{"files": [{"path": "a"}]}'])
def test_an_inventory_without_sense_is_named(tmp_path: Path, data: bytes) -> None:
    """A sealed inventory that lists nothing usable is itself the broken thing."""
    folder, key = sealed(tmp_path)
    (folder / "artifact_inventory.json").write_bytes(data)
    seal(folder, job=JOB, run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert links(verify_path(folder)) == {("artifact_inventory.json", "inventory")}


def test_another_signer_is_seen_only_against_a_pinned_key(folder: Path, tmp_path: Path) -> None:
    """Who changes everything and signs anew passes unpinned, and never passes a pinned key."""
    mine = signing_key(Home(tmp_path / "mine"))
    theirs = signing_key(Home(tmp_path / "theirs"))
    entries = chained(["forged"])
    seal(folder, job=JOB, run_id=RUN_ID, entries=entries, key=mine)
    assert verify_path(folder, mine.public_path)["ok"]
    (folder / "summary.json").write_bytes(b"{}")
    (folder / "artifact_inventory.json").unlink()
    seal(folder, job=JOB, run_id=RUN_ID, entries=entries, key=theirs)
    unpinned = verify_path(folder, None, [mine.public_path])
    assert unpinned["ok"]
    assert unpinned["signer"] == {"key_id": theirs.key_id, "pinned": False}
    pinned = verify_path(folder, mine.public_path)
    assert links(pinned) == {(SEAL, "signature")}
    assert pinned["broken"][0]["found"] == theirs.key_id
    assert pinned["signer"]["pinned"] is False


def test_a_seal_of_another_folder_does_not_fit(folder: Path, tmp_path: Path) -> None:
    """A genuine seal moved to other results names what differs."""
    other, _ = sealed(tmp_path / "other", steps=3)
    shutil.copy(other / SEAL, folder / SEAL)
    assert {("ledger.jsonl", "file"), ("ledger.jsonl", "seal")} <= links(verify_path(folder))


def test_a_ledger_from_another_writer_is_told(tmp_path: Path) -> None:
    """Lines that are no entries, and a line cut short, are links of the chain."""
    folder, _ = sealed(tmp_path)
    good = ledger_bytes(chained(["a"]))
    for data in (b"\n", b"[1]\n", b"\xff\n", good[:-1], good + b"{}"):
        (folder / "ledger.jsonl").write_bytes(data)
        assert ("ledger.jsonl", "entry") in links(verify_path(folder)), data


def test_names_without_utf8_are_told_not_thrown(folder: Path) -> None:
    """A name that no JSON can hold still ends in exit 2."""
    with open(os.fsencode(folder) + b"/caf\xe9", "wb"):
        pass
    result = verify_path(folder)
    assert [item["link"] for item in result["broken"]] == ["unlisted"]
    json.dumps(result)


def test_a_missing_path_is_exit_3_and_a_bad_key_exit_1(folder: Path, tmp_path: Path) -> None:
    """Nothing to check is no verdict."""
    with pytest.raises(VerifyError) as missing:
        verify_path(tmp_path / "nowhere")
    assert (missing.value.exit_code, missing.value.kind) == (3, "not_found")
    for name, data in {
        "no": None,
        "text": b"hello",
        "cut": b"-----BEGIN PUBLIC KEY-----\n",
    }.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(VerifyError) as bad:
            load_public_key(tmp_path / name)
        assert bad.value.exit_code == 1


def test_the_copy_in_the_folder_runs_alone(folder: Path, original: tuple[Path, SigningKey]) -> None:
    """`python -I verify.py`, from anywhere, with the same JSON and exit codes as the library."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(folder / "verify.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)

    whole = run("--key", str(original[1].public_path))
    assert whole.returncode == 0, whole.stderr
    assert json.loads(whole.stdout) == verify_path(folder, original[1].public_path)
    assert "whole" in whole.stderr
    flip(folder / "metrics.jsonl", 0)
    broken = run("--json")
    assert (broken.returncode, broken.stderr) == (2, "")
    assert json.loads(broken.stdout)["broken"][0]["path"] == "metrics.jsonl"
    missing = run(str(folder / "nowhere"), "--json")
    assert (missing.returncode, missing.stderr) == (3, "")
    assert json.loads(missing.stdout)["error"]["kind"] == "not_found"
    assert run("--no-such-flag").returncode == 64
    assert not list(folder.rglob("__pycache__"))


def test_the_file_stands_alone_on_python_3_8() -> None:
    """Only the standard library and `cryptography` are imported, and nothing newer than 3.8."""
    path = Path(verify.__file__)
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"cryptography"}
    vermin = str(Path(sys.executable).with_name("vermin"))
    command = [vermin, "-t=3.8-", "--no-tips", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_command_line_in_process(
    folder: Path, original: tuple[Path, SigningKey], capsys: pytest.CaptureFixture[str]
) -> None:
    """Broken things are told one a line on stderr."""
    flip(folder / "summary.json", 0)
    assert main([str(folder)]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is False
    assert "broken: summary.json (file)" in err


def test_known_keys_of_a_home_pin(folder: Path, tmp_path: Path) -> None:
    """The home's own key and those in keys/known count as known."""
    mine, other = Home(tmp_path / "mine"), Home(tmp_path / "other")
    key = signing_key(other)
    seal(folder, job=JOB, run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert not verify_path(folder, None, known_keys(mine))["signer"]["pinned"]
    assert verify_path(folder, None, known_keys(other))["signer"]["pinned"]
    (mine.keys / "known").mkdir(parents=True)
    shutil.copy(key.public_path, mine.keys / "known" / "colleague.pub")
    assert verify_path(folder, None, known_keys(mine))["signer"]["pinned"]
