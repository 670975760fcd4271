"""What every host promises, held against both of them."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiment.errors import RemoteStepFailed, StepTimeout
from experiment.hosts.base import Completed, Host
from tests.twins.rented_box import until

HOSTILE = [
    "",
    "two words",
    "it's",
    '"double"',
    "$HOME `id` $(id)",
    "a;b&c|d>e",
    "back\\slash",
    "line\nbreak",
    "*?[a]~",
    "-n",
    "ünï 文字",
]
ENDINGS = [
    (["true"], 0),
    (["false"], 1),
    (["sh", "-c", "exit 75"], 75),
    (["sh", "-c", "kill -9 $$"], 128 + 9),
    (["sh", "-c", "kill -15 $$"], 128 + 15),
    (["no-such-program-here"], 127),
]


def test_arguments_arrive_unchanged(host: Host) -> None:
    """Quoting is done once, and nothing in an argument is ever read by a shell."""
    done = host.run(["printf", r"%s\0", *HOSTILE], timeout=20)
    assert done.stdout.decode().split("\0") == [*HOSTILE, ""]


@pytest.mark.parametrize(("argv", "code"), ENDINGS)
def test_endings_are_told_apart(host: Host, argv: list[str], code: int) -> None:
    """Exit codes are the program's own; death by signal is 128 + n."""
    assert host.run(argv, timeout=20).returncode == code


def test_output_is_bytes_and_whole(host: Host) -> None:
    """20 MB of every byte come back as they were, and stderr beside them does not block."""
    program = (
        "import sys, threading\n"
        "block = bytes(range(256)) * 4096\n"
        "err = threading.Thread(target=lambda: sys.stderr.buffer.write(block * 3))\n"
        "err.start()\n"
        "for _ in range(20): sys.stdout.buffer.write(block)\n"
        "err.join()\n"
    )
    done = host.run([sys.executable, "-c", program], timeout=60)
    block = bytes(range(256)) * 4096
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(block * 20).digest()
    assert done.stderr == block * 3


def test_stdin_is_bytes_and_ends(host: Host) -> None:
    """What is given on stdin arrives unchanged; without any, a reader sees the end at once."""
    data = os.urandom(3_000_000)
    assert host.run(["cat"], timeout=20, stdin=data) == Completed(0, data, b"")
    assert host.run(["cat"], timeout=20) == Completed(0, b"", b"")


def test_unread_stdin_is_no_failure(host: Host) -> None:
    """A program may end without reading its stdin."""
    assert host.run(["true"], timeout=20, stdin=b"x" * 5_000_000).returncode == 0


def test_a_slow_program_does_not_hold_the_call(host: Host, tmp_path: Path) -> None:
    """The call returns at its timeout; the program gets TERM where the host allows it."""
    pid = tmp_path / "pid"
    begun = time.monotonic()
    with pytest.raises(StepTimeout) as failed:
        host.run(["sh", "-c", 'echo $$ > "$1"; exec sleep 20', "sh", str(pid)], timeout=0.7)
    assert time.monotonic() - begun < 4
    assert failed.value.exit_code == 124
    if host.address == "this machine" or os.geteuid() != 0:
        until(lambda: not psutil.pid_exists(int(pid.read_text())), "the program ended")


def test_a_background_child_with_closed_streams_does_not_block(host: Host) -> None:
    """A detached job that let go of its streams leaves the call free to return."""
    begun = time.monotonic()
    done = host.run(["sh", "-c", "sleep 3 </dev/null >/dev/null 2>&1 & echo ok"], timeout=20)
    assert done.stdout == b"ok\n"
    assert time.monotonic() - begun < 2.5


def test_stream_hands_on_as_it_comes(host: Host) -> None:
    """The sink gets the pieces while the program runs; the exit code and stderr come at the end."""
    seen: list[tuple[float, bytes]] = []
    done = host.stream(
        ["sh", "-c", "echo first; sleep 0.5; echo second; echo bad >&2; exit 3"],
        lambda chunk: seen.append((time.monotonic(), chunk)),
        timeout=20,
    )
    assert b"".join(chunk for _, chunk in seen) == b"first\nsecond\n"
    assert seen[-1][0] - seen[0][0] > 0.3
    assert done == Completed(3, b"", b"bad\n")


@pytest.mark.parametrize("error", [OSError(28, "disk full here"), ValueError("mine")])
def test_a_sink_that_fails_is_heard(host: Host, error: Exception) -> None:
    """The caller's own failure passes through unchanged and ends the program."""

    def sink(chunk: bytes) -> None:
        raise error

    with pytest.raises(type(error)) as failed:
        host.stream(["sh", "-c", "echo x; exec sleep 60"], sink, timeout=20)
    assert failed.value is error


def test_files_are_written_whole_with_their_mode(host: Host, tmp_path: Path) -> None:
    """`write` makes the folder, sets the mode, replaces, and leaves no part behind."""
    path = tmp_path / "new" / "deep er" / "it's"
    for data in (b"first", os.urandom(700_000), b""):
        host.write(data, str(path), mode=0o600)
        assert host.read(str(path)) == data
        assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["it's"]


def test_a_missing_file_is_told(host: Host, tmp_path: Path) -> None:
    """Absent is not unreachable."""
    with pytest.raises(FileNotFoundError):
        host.read(str(tmp_path / "absent"))


def test_a_file_that_cannot_be_written_is_named(host: Host, tmp_path: Path) -> None:
    """The host's no comes back with the path, and is no broken link."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    for remote in (tmp_path / "file" / "below", tmp_path / "folder"):
        with pytest.raises(RemoteStepFailed) as failed:
            host.write(b"x", str(remote))
        assert str(remote) in failed.value.line()
        with pytest.raises(RemoteStepFailed):
            host.put(tmp_path / "file", str(remote), timeout=20)


@pytest.mark.parametrize("size", [0, 1, 32_704, 30_000_001])
def test_put_copies_any_size(host: Host, tmp_path: Path, size: int) -> None:
    """A file arrives byte for byte under its name only, and progress reaches the end."""
    local, remote = tmp_path / "local", tmp_path / "made" / "re mote's"
    local.write_bytes(os.urandom(size))
    seen: list[tuple[int, int]] = []
    host.put(local, str(remote), timeout=60, progress=lambda *at: seen.append(at))
    assert remote.read_bytes() == local.read_bytes()
    assert [entry.name for entry in remote.parent.iterdir()] == [remote.name]
    assert not size or seen[-1] == (size, size)


def test_put_of_a_missing_file_is_the_callers_mistake(host: Host, tmp_path: Path) -> None:
    """Nothing is sent, and nothing is blamed on the host."""
    with pytest.raises(FileNotFoundError):
        host.put(tmp_path / "absent", str(tmp_path / "there"), timeout=20)
    assert not (tmp_path / "there").exists()


def test_close_is_followed_by_another_call(host: Host) -> None:
    """A closed host opens again by itself."""
    host.close()
    assert host.run(["echo", "again"], timeout=20).stdout == b"again\n"
