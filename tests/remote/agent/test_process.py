"""Which process is meant, and whether it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from remote.agent.process import (
    alive,
    boot_id,
    facts,
    group_members,
    identify,
    machine_id,
    parse_ps,
    parse_stat,
    send,
    state,
    tagged,
)
from tests.remote.agent.agent_host import wait_for

STAT_TAIL = "1 7 7 34816 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 98765 1000 200 184"


@pytest.fixture
def sleeper():
    """A child that only sleeps."""
    child = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, "CHARTER_TEST": "yes"}, start_new_session=True
    )
    wait_for(lambda: tagged({"CHARTER_TEST": "yes"}))
    yield child
    child.kill()
    child.wait()


def test_self_is_alive() -> None:
    """A process that runs has an identity, and it is alive."""
    me = identify(os.getpid())
    assert me is not None
    assert me["boot_id"] == boot_id()
    assert alive(me)


def test_reused_pid_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    """The same pid with another start time, or from another boot, is another process."""
    me = identify(sleeper.pid)
    assert me is not None
    for other in ({**me, "start": me["start"] - 1}, {**me, "boot_id": "another"}):
        assert state(other) == "gone"
        assert not send(other, signal.SIGKILL)
    assert alive(me)


def test_zombie_is_dead() -> None:
    """A process that ended and is not yet waited for does not live, though /proc has it."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    me = identify(child.pid)
    assert me is not None
    wait_for(lambda: state(me) == "zombie")
    assert not alive(me)
    child.wait()
    assert state(me) == "gone"


@pytest.mark.parametrize("nothing", [None, {}, {"pid": None}, {"pid": 0}, {"pid": 2**22 + 1}])
def test_nothing_is_not_alive(nothing: object) -> None:
    """No identity, or one of no process, is dead and raises nothing."""
    assert not alive(nothing)  # type: ignore[arg-type]


def test_tags_find_a_process_that_left_its_group(sleeper: subprocess.Popen[bytes]) -> None:
    """A process is found by the environment it was started with, by name and by value."""
    assert [row.pid for row in tagged({"CHARTER_TEST": None})] == [sleeper.pid]
    assert tagged({"CHARTER_TEST": "no"}) == []
    assert [row.pid for row in group_members(sleeper.pid)] == [sleeper.pid]


@pytest.mark.parametrize("name", ["cat", "a b", "a) R (b", ")", "((", "x\n1"])
def test_stat_line_with_any_command_name(name: str) -> None:
    """A command may hold spaces and parentheses and does not shift the fields."""
    found = parse_stat(f"42 ({name}) Z {STAT_TAIL}")
    assert found._asdict() == {
        "pid": 42,
        "state": "Z",
        "parent": 1,
        "group": 7,
        "session": 7,
        "tty": 34816,
        "start": 98765,
    }


def test_ps_lines_of_macos() -> None:
    """What macOS's ps prints becomes the same rows; other lines are left out."""
    rows = parse_ps(
        "  501 Ss     1   501      0 ??       Mon Nov 30 20:01:02 2026\n"
        "  777 Z+   501   777      0 ttys003  Mon Nov 30 20:01:05 2026\n"
        "  888 <defunct>\n"
    )
    assert [(row.pid, row.state, row.parent, row.group, row.tty) for row in rows] == [
        (501, "S", 1, 501, 0),
        (777, "Z", 501, 777, 1),
    ]
    assert rows[1].start - rows[0].start == 3


def test_facts_of_a_missing_process() -> None:
    """Pids that can't be are no error."""
    assert facts(0) is None
    assert facts(-1) is None


def test_machine_id_is_stable() -> None:
    """The machine has one name, and it is never empty."""
    assert machine_id()
    assert machine_id() == machine_id()
