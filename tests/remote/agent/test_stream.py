"""One agent answers many requests, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.agent.pack import build_agent


class Stream:
    """A packed agent on pipes."""

    def __init__(self, folder: Path) -> None:
        archive = folder / "agent.pyz"
        archive.write_bytes(build_agent())
        self.archive = archive
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(archive), "stream"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def say(self, line: bytes) -> bytes:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def ask(self, step: str, data_root: Path, **fields: Any) -> dict[str, Any]:
        request = {
            "protocol": 1,
            "request_id": f"r/{step}",
            "epoch": 1,
            "job": "demo",
            "run_id": "20260101-000000",
            "attempt": 1,
            "data_root": str(data_root),
            **fields,
        }
        answer: dict[str, Any] = json.loads(
            self.say(json.dumps({"step": step, "request": request}).encode())
        )
        return answer


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    for pipe in (made.process.stdin, made.process.stdout):
        assert pipe
        pipe.close()


def test_many_requests_one_agent(stream: Stream, tmp_path: Path) -> None:
    """Answers, known failures and unknown steps are told apart, and it goes on after each."""
    hello = stream.ask("hello", tmp_path)
    assert hello["exit_code"] == 0
    assert hello["response"]["ok"] is True
    refused = stream.ask("digest", tmp_path, paths=["/etc/passwd"])
    assert (refused["exit_code"], refused["response"]["error"]["kind"]) == (2, "guard_refused")
    assert "/etc/passwd" in refused["stderr"]
    for name in ("archive", "nothing"):
        assert stream.ask(name, tmp_path)["exit_code"] == 64
    assert stream.say(b"") == b"\n"
    assert stream.ask("hello", tmp_path)["response"]["evidence"] == hello["response"]["evidence"]


def test_a_damaged_agent_gives_no_answer(stream: Stream, tmp_path: Path) -> None:
    """What cannot be read from the archive is a failure with a traceback, never an answer."""
    stream.say(b"")
    stream.archive.write_bytes(b"not an archive")
    told = stream.ask("digest", tmp_path, paths=[])
    assert (told["exit_code"], told["response"]) == (70, None)
    assert "remote.agent.digest" in told["stderr"]


def test_a_step_that_is_killed_is_told(stream: Stream, tmp_path: Path) -> None:
    """A child that dies by a signal leaves no answer, and the next request finds the agent."""
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 36)  # sparse: it takes no disk, and minutes to hash
    assert stream.process.stdin
    request = {
        "protocol": 1,
        "request_id": "r/digest",
        "data_root": str(tmp_path),
        "paths": [str(large)],
    }
    line = json.dumps({"step": "digest", "request": request}).encode() + b"\n"
    stream.process.stdin.write(line)
    stream.process.stdin.flush()
    child = _child_of(stream.process.pid)
    os.kill(child, signal.SIGKILL)
    assert stream.process.stdout
    told = json.loads(stream.process.stdout.readline())
    assert (told["exit_code"], told["response"]) == (137, None)
    assert stream.ask("hello", tmp_path)["exit_code"] == 0


def test_it_ends_with_its_channel(stream: Stream) -> None:
    """The end of stdin ends it, with 0."""
    assert stream.say(b"") == b"\n"
    assert stream.process.stdin
    stream.process.stdin.close()
    assert stream.process.wait(20) == 0


def _child_of(pid: int) -> int:
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if words:
            return int(words[0])
        time.sleep(0.01)
    raise AssertionError("no child")
