"""The agent is placed by its hash, and only an answer to our own request is believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from experiment.errors import (
    Busy,
    EvidenceMismatch,
    Fenced,
    GuardRefused,
    RemoteStepFailed,
    UsageError,
)
from experiment.hosts.agent_door import AgentDoor, RequestRef, find_python
from experiment.hosts.base import Completed, Host
from experiment.hosts.local import LocalHost

REF = RequestRef("demo", "20260101-000000", 1, 1)


@pytest.fixture
def door(host: Host, tmp_path: Path) -> AgentDoor:
    """An agent placed on either kind of host, in a data root with a space in its name."""
    placed = AgentDoor(host, str(tmp_path / "data root"), find_python(host))
    placed.place()
    return placed


class Tampering(LocalHost):
    """This machine, with answers that arrive otherwise than they were written."""

    def __init__(self, change: Callable[[dict[str, object]], None]) -> None:
        super().__init__({"PATH": "/usr/bin:/bin"}, "/")
        self._change = change

    def ask(self, argv: Sequence[str], line: bytes, *, timeout: float) -> bytes | Completed:
        found = super().ask(argv, line, timeout=timeout)
        assert isinstance(found, bytes)
        told = json.loads(found)
        self._change(told["response"])
        return json.dumps(told).encode()


def test_the_agent_is_placed_under_its_hash(host: Host, tmp_path: Path) -> None:
    """`place` says who the host is; a second one sends nothing; a damaged file is replaced."""
    door = AgentDoor(host, str(tmp_path), find_python(host))
    first = door.place()
    assert first["agent_sha256"] == door.sha256
    assert first["data_root"] == str(tmp_path)
    placed = Path(door.agent_path)
    assert placed.name == f"agent-{door.sha256[:12]}.pyz"
    before = placed.stat().st_ino
    assert door.place() == first
    assert placed.stat().st_ino == before
    placed.write_bytes(b"damaged")
    assert door.place() == first


def test_an_older_agent_stays_where_it_is(door: AgentDoor) -> None:
    """What may be running under another hash is never touched."""
    older = Path(door.agent_path).with_name("agent-0123456789ab.pyz")
    older.write_bytes(b"an older one")
    door.place()
    assert older.read_bytes() == b"an older one"


def test_evidence_comes_back_and_no_request_stays(door: AgentDoor) -> None:
    """A request that needs no file leaves none; one that does leaves neither it nor its answer."""
    data = Path(door.data_root) / "it's here"
    data.write_bytes(b"abc")
    found = door.call("digest", {"paths": [str(data)]}, ref=REF, timeout=60)
    assert found["files"][str(data)]["bytes"] == 3
    assert not (Path(door.data_root) / ".charter" / "requests").exists()
    with pytest.raises(EvidenceMismatch, match="inventory is missing"):
        door.stream("archive", {"run_root": door.data_root}, print, ref=REF, timeout=60)
    assert list((Path(door.data_root) / ".charter" / "requests").iterdir()) == []


def test_known_failures_are_errors_of_ours(door: AgentDoor) -> None:
    """The agent's kind becomes the class, its exit code stays, its hint is kept."""
    with pytest.raises(GuardRefused) as refused:
        door.call("digest", {"paths": ["/etc/passwd"]}, ref=REF, timeout=60)
    assert refused.value.exit_code == 2
    assert "/etc/passwd" in refused.value.line()
    with pytest.raises(UsageError) as wrong:
        door.call("digest", {"paths": 1}, ref=REF, timeout=60)
    assert wrong.value.exit_code == 64


def test_a_replaced_controller_is_fenced(door: AgentDoor) -> None:
    """A lower epoch than the highest seen is refused: another controller took over."""
    check = {"min_free_gib": 0, "min_free_inodes": 0, "gpu_count": 0, "gpu_name": "any"}
    check |= {"min_vram_gib": 0, "cuda_min": None}
    newer = RequestRef("demo", "20260101-000000", 1, 7)
    door.call("preflight", check, ref=newer, timeout=60)
    with pytest.raises(Fenced) as fenced:
        door.call("preflight", check, ref=REF, timeout=60)
    assert isinstance(fenced.value, Busy)


TAMPERED = [
    lambda answer: answer.update(request_sha256="0" * 64),
    lambda answer: answer.update(protocol=99),
    lambda answer: answer.pop("request_sha256"),
]


@pytest.mark.parametrize("change", TAMPERED)
def test_an_answer_to_another_request_is_not_believed(
    tmp_path: Path, change: Callable[[dict[str, object]], None]
) -> None:
    """Protocol and digest of the request must be ours."""
    with closing(LocalHost({"PATH": "/usr/bin:/bin"}, "/")) as honest:
        AgentDoor(honest, str(tmp_path), sys.executable).place()
    with closing(Tampering(change)) as liar, pytest.raises(EvidenceMismatch):
        AgentDoor(liar, str(tmp_path), sys.executable).call(
            "digest", {"paths": []}, ref=REF, timeout=60
        )


def test_an_interpreter_that_is_missing_is_127_and_leaves_no_secret(
    host: Host, tmp_path: Path
) -> None:
    """Nothing ran: the request, which may hold secrets, does not stay on the host."""
    door = AgentDoor(host, str(tmp_path), "/nowhere/python3")
    with pytest.raises(RemoteStepFailed) as failed:
        door.call("launch", {"secrets": {"TOKEN": "planted"}}, ref=REF, timeout=60)
    assert failed.value.exit_code == 127
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"planted" in path.read_bytes()] == []


def test_an_agent_that_dies_without_an_answer_is_told(door: AgentDoor) -> None:
    """No answer is a failure with the program's last words, never a success."""
    door.host.close()
    Path(door.agent_path).write_bytes(b"not a zip archive")
    with pytest.raises(RemoteStepFailed, match="gave no answer"):
        door.call("hello", {}, ref=REF, timeout=60)


def test_a_host_without_python_is_127(tmp_path: Path) -> None:
    """The script is sent on stdin, so it needs only a shell there."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    bare = LocalHost({"PATH": str(tmp_path / "bin")}, tmp_path)
    assert bare.run(["sh", "-c", "true"], timeout=20) == Completed(0, b"", b"")
    with pytest.raises(RemoteStepFailed) as failed:
        find_python(bare)
    assert failed.value.exit_code == 127
