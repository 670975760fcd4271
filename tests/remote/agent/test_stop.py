"""Ending a run: the group and what escaped from it, and never anybody else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.agent.files import write_json
from remote.agent.process import alive, all_facts, identify
from tests.remote.agent.agent_host import RUN_ID, AgentHost, wait_for

STUBBORN = 'trap "echo no" TERM; echo ready; while :; do sleep 0.1; done'
FAMILY = "sleep 61 & setsid sleep 62 & (setsid sleep 63 &) ; echo ready; wait"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


def test_group_and_escaped_grandchildren_end(host: AgentHost) -> None:
    """Not the single pid: children, and those with a session of their own, all end."""
    evidence = host.launch(FAMILY)
    wait_for(lambda: len(host.do("status")["process"]["tree"]) == 4)
    tree = host.do("status")["process"]["tree"]
    assert evidence["pid"] in tree
    stopped = host.do("stop", grace_seconds=10)
    assert {item["pid"] for item in stopped["signalled"]} == set(tree)
    assert {item["signal"] for item in stopped["signalled"]} == {"SIGTERM"}
    assert stopped["exited"] is True
    assert stopped["exit_record"]["exit_code"] == 143
    assert stopped["exit_record"]["stop"]["by"] == "stop"
    assert [pid for pid in tree if alive(identify(pid))] == []


def test_process_without_our_environment_is_found(host: AgentHost) -> None:
    """A descendant that cleared its environment and left the session is found by descent."""
    host.launch("env -i setsid -f sleep 64; echo ready; sleep 60")
    wait_for(lambda: len(host.do("status")["process"]["tree"]) == 2)
    assert host.do("stop", grace_seconds=10)["remaining"] == []


def test_no_kill_without_force(host: AgentHost) -> None:
    """A trainer that ignores TERM lives on, and the answer says so."""
    evidence = host.launch(STUBBORN)
    wait_for(host.log_lines)
    stopped = host.do("stop", grace_seconds=0.5)
    assert stopped["exited"] is False
    assert evidence["pid"] in stopped["remaining"]
    assert alive(evidence)


def test_force_kills(host: AgentHost) -> None:
    """With force KILL follows the grace, and the exit record says 137."""
    host.launch(STUBBORN)
    wait_for(host.log_lines)
    stopped = host.do("stop", grace_seconds=0.3, force=True)
    assert stopped["exited"] is True
    assert stopped["exit_record"]["exit_code"] == 137
    assert stopped["exit_record"]["stop"]["signal"] == "SIGKILL"
    assert "no" in host.log_lines()


def test_stopped_twice(host: AgentHost) -> None:
    """Stopping a run that is over signals nobody and gives its record."""
    host.launch("exit 4")
    host.exit_record()
    stopped = host.do("stop")
    assert stopped["signalled"] == []
    assert stopped["exited"] is True
    assert stopped["exit_record"]["exit_code"] == 4


def test_nothing_launched(host: AgentHost) -> None:
    """A run root without a launch is not found."""
    assert host.refusal("stop")["kind"] == "not_found"


def test_reused_pid_is_not_signalled(host: AgentHost) -> None:
    """A record whose pid now belongs to somebody else ends nobody."""
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        me = identify(bystander.pid)
        assert me is not None
        record = {
            "request_id": f"{RUN_ID}/1/launch",
            "attempt": 1,
            **me,
            "start": me["start"] - 1,
            "supervisor": None,
        }
        write_json(host.run.launch, record)
        stopped = host.do("stop", force=True, grace_seconds=0.2)
        assert stopped["signalled"] == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_other_jobs_and_the_step_itself_are_left_alone(host: AgentHost) -> None:
    """A process that carries the run's plain tags, as a login on the host does, is no trainer."""
    bystander = subprocess.Popen(
        ["sleep", "60"],
        env={**os.environ, "CHARTER_ROLE": "host", "CHARTER_RUN_ID": RUN_ID, "CHARTER_JOB": "demo"},
    )
    try:
        host.launch("sleep 60")
        assert host.do("stop", grace_seconds=10)["exited"] is True
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_checkpoint_and_log_stay(host: AgentHost) -> None:
    """Stopping removes nothing from the run root."""
    host.launch('echo kept | tee "$AUTODL_RUN_ROOT/x"; sleep 60')
    wait_for(host.log_lines)
    host.do("stop", grace_seconds=10)
    assert (host.run.path / "x").read_text() == "kept\n"
    assert host.log_lines() == ["kept"]
    assert json.loads(host.run.launch.read_text())["status"] == "launched"


def test_the_same_request_on_another_data_root_is_not_ours(tmp_path: Path) -> None:
    """Run ids are times: two homes of one machine may launch the same id; stop ends one of them."""
    with AgentHost(tmp_path / "one") as one, AgentHost(tmp_path / "two") as two:
        one.launch("echo ready; sleep 60")
        other = two.launch("echo ready; sleep 60")
        assert two.do("status")["process"]["tree"] == [other["pid"], *_children(other["pid"])]
        assert one.do("stop", grace_seconds=10)["exited"] is True
        assert alive(other)


def _children(pid: int) -> list[int]:
    return [row.pid for row in all_facts() if row.parent == pid]
