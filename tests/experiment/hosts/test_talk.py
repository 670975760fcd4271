"""A program that is kept running answers line by line, on this machine and through real SSH."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from experiment.errors import HostUnreachable, RemoteStepFailed, StepTimeout
from experiment.hosts import talk
from experiment.hosts.base import Completed, Host
from experiment.hosts.ssh import SshHost

# Says its pid and the line back; a few words do more.
ECHO = r"""
import os, sys, time
for line in sys.stdin.buffer:
    word = line.strip().decode()
    if word.startswith("sleep"): time.sleep(float(word.split()[1]))
    if word == "die": sys.stderr.write("last words\n"); os._exit(7)
    if word == "flood":
        while True: os.write(1, b"x" * 65536)
    said = b"" if not word else f"{os.getpid()} {word}".encode()
    os.write(1, said + b"\n")
"""


@pytest.fixture
def echo(tmp_path: Path) -> list[str]:
    program = tmp_path / "echo.py"
    program.write_text(ECHO)
    return [sys.executable, "-u", str(program)]


def ask(host: Host, echo: list[str], word: str, timeout: float = 20) -> str:
    answer = host.ask(echo, word.encode(), timeout=timeout)
    assert isinstance(answer, bytes), answer
    return answer.decode()


def test_one_program_answers_again_and_again(host: Host, echo: list[str]) -> None:
    """The second question goes to the program that answered the first; large lines are whole."""
    first, second = ask(host, echo, "one"), ask(host, echo, "two")
    assert [first.split()[1], second.split()[1]] == ["one", "two"]
    assert first.split()[0] == second.split()[0]
    large = "y" * 3_000_000
    assert ask(host, echo, large).split()[1] == large


def test_two_callers_do_not_wait_for_each_other(host: Host, echo: list[str]) -> None:
    """While one program is busy another one answers."""
    slow = threading.Thread(target=ask, args=(host, echo, "sleep 3"))
    slow.start()
    time.sleep(0.5)
    begun = time.monotonic()
    ask(host, echo, "quick")
    assert slow.is_alive(), time.monotonic() - begun
    slow.join()


def test_a_program_that_ends_is_told_and_replaced(host: Host, echo: list[str]) -> None:
    """Its exit code and last words come back; the next question finds another one."""
    pid = ask(host, echo, "one").split()[0]
    ended = host.ask(echo, b"die", timeout=20)
    assert isinstance(ended, Completed)
    assert (ended.returncode, ended.complaint()) == (7, "last words")
    assert ask(host, echo, "again").split()[0] != pid


def test_a_program_that_is_not_there(host: Host) -> None:
    """As a shell tells it."""
    ended = host.ask(["/nowhere/program"], b"x", timeout=20)
    assert isinstance(ended, Completed)
    assert ended.returncode == 127


def test_an_answer_that_takes_too_long(host: Host, echo: list[str]) -> None:
    """The call returns in time, and a late answer is nobody's."""
    begun = time.monotonic()
    with pytest.raises(StepTimeout):
        ask(host, echo, "sleep 30", timeout=1)
    assert time.monotonic() - begun < 10
    assert ask(host, echo, "next").split()[1] == "next"


def test_an_answer_without_end(
    host: Host, echo: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that never ends costs a bounded amount of memory."""
    monkeypatch.setattr(talk, "LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(RemoteStepFailed, match="without end"):
        ask(host, echo, "flood")


@pytest.mark.sshd
def test_what_was_quiet_gives_a_sign_of_life_first(
    ssh_host: SshHost, echo: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that died in a quiet hour is replaced before anything is asked."""
    pid = ask(ssh_host, echo, "one").split()[0]
    monkeypatch.setattr(talk, "QUIET_SECONDS", 0.0)
    assert ask(ssh_host, echo, "two").split()[0] == pid
    ssh_host._connection.transport.sock.close()  # type: ignore[union-attr]
    assert ask(ssh_host, echo, "three").split()[0] != pid


@pytest.mark.sshd
def test_a_cut_during_a_question(ssh_host: SshHost, echo: list[str]) -> None:
    """Nobody knows whether it was done: unreachable, and never asked a second time by itself."""
    ask(ssh_host, echo, "one")
    cut = threading.Timer(0.5, lambda: ssh_host._connection.transport.sock.close())  # type: ignore[union-attr]
    cut.start()
    with pytest.raises(HostUnreachable):
        ask(ssh_host, echo, "sleep 5")
    cut.join()
