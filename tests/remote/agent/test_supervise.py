"""The trainer's parent: the true exit code, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.agent.process import alive, identify, send
from remote.agent.supervise import write_patiently
from tests.remote.agent.agent_host import AgentHost, wait_for


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


@pytest.mark.parametrize(("code", "status"), [(0, "SUCCEEDED"), (7, "FAILED"), (255, "FAILED")])
def test_exit_code_is_recorded(host: AgentHost, code: int, status: str) -> None:
    """The exit record has the keys of R3 and the trainer's own code."""
    evidence = host.launch(f"exit {code}")
    record = host.exit_record()
    assert (record["status"], record["exit_code"]) == (status, code)
    assert record["finished_at"].endswith("Z")
    assert record["pid"] == evidence["pid"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_signal_is_recorded(host: AgentHost, number: signal.Signals) -> None:
    """kill -9 of the trainer still leaves an exit record, with 128+n."""
    evidence = host.launch("sleep 60 & wait")
    os.kill(evidence["pid"], number)
    record = host.exit_record()
    assert record["exit_code"] == 128 + number
    assert record["signal"] == number.name
    assert record["status"] == "FAILED"
    assert record["observed"] is True


def test_kill_of_the_whole_group_is_recorded(host: AgentHost) -> None:
    """A KILL of the trainer's group does not reach the supervisor, which writes the record."""
    evidence = host.launch("sleep 60 & sleep 60")
    os.killpg(evidence["pid"], signal.SIGKILL)
    assert host.exit_record()["exit_code"] == 137


def test_killed_supervisor_is_detected(host: AgentHost) -> None:
    """The trainer lives on; status says that nobody watches it, and later that nobody knows."""
    evidence = host.launch("echo working; sleep 60")
    wait_for(host.log_lines)
    assert send(evidence["supervisor"], signal.SIGKILL)
    wait_for(lambda: not alive(evidence["supervisor"]))
    status = host.do("status")
    assert status["supervisor_alive"] is False
    assert status["verdict"]["verdict"] == "RUNNING"
    assert status["verdict"]["flags"]["unsupervised"] is True
    os.killpg(evidence["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(evidence))
    status = host.do("status")
    assert status["exit_record"] is None
    assert status["verdict"]["verdict"] == "STOPPED"
    assert status["verdict"]["flags"]["needs_human"] is True


def test_stop_after_the_supervisor_died_leaves_a_record(host: AgentHost) -> None:
    """Who ends an unwatched trainer writes its exit record, and says that it is deduced."""
    evidence = host.launch("sleep 60")
    send(evidence["supervisor"], signal.SIGKILL)
    wait_for(lambda: not alive(evidence["supervisor"]))
    stopped = host.do("stop", grace_seconds=10)
    assert stopped["exited"] is True
    assert stopped["exit_record"]["exit_code"] == 143
    assert stopped["exit_record"]["observed"] is False


def test_term_is_passed_on(host: AgentHost) -> None:
    """A TERM of the supervisor lets the trainer save, and its code is still the true one."""
    saves = 'trap "echo saving; exit 5" TERM; echo ready; while :; do sleep 0.1; done'
    evidence = host.launch(saves)
    wait_for(host.log_lines)
    send(evidence["supervisor"], signal.SIGTERM)
    assert host.exit_record()["exit_code"] == 5
    assert host.log_lines()[-1] == "saving"


def test_hangup_is_ignored(host: AgentHost) -> None:
    """SIGHUP ends neither supervisor nor trainer."""
    evidence = host.launch("echo ready; sleep 1; echo done")
    wait_for(host.log_lines)
    send(evidence["supervisor"], signal.SIGHUP)
    os.kill(evidence["pid"], signal.SIGHUP)
    assert host.exit_record()["exit_code"] == 0
    assert host.log_lines() == ["ready", "done"]


def test_sessions_and_stdin(host: AgentHost) -> None:
    """Supervisor and trainer lead sessions of their own; the trainer's stdin is closed."""
    evidence = host.launch("cat; echo read; sleep 60")
    wait_for(host.log_lines)
    assert host.log_lines() == ["read"]
    for pid in (evidence["pid"], evidence["supervisor"]["pid"]):
        assert os.getsid(pid) == pid
        assert os.getpgid(pid) == pid


def test_trainer_inherits_no_descriptors(host: AgentHost) -> None:
    """Locks and pipes of ours don't leak into the trainer."""
    host.launch("ls /proc/self/fd | wc -l")
    host.exit_record()
    # 0, 1, 2 and the one that ls opens; bash adds none that ls keeps.
    assert host.log_lines() == ["4"]


def test_heartbeat_and_history(host: AgentHost) -> None:
    """While the trainer lives the heartbeat moves and resources are sampled."""
    host.launch("sleep 60")
    wait_for(host.run.heartbeat.exists)
    first = json.loads(host.run.heartbeat.read_text())
    wait_for(lambda: json.loads(host.run.heartbeat.read_text())["at_utc"] > first["at_utc"])
    wait_for(lambda: host.run.resources.exists() and host.run.resources.stat().st_size > 0)
    sample = json.loads(host.run.resources.read_text().splitlines()[0])
    assert sample["disk"]["free_bytes"] > 0
    assert host.do("status")["heartbeat_age_seconds"] < 30


def test_orphans_are_reaped(host: AgentHost) -> None:
    """Grandchildren that the trainer abandons become the supervisor's and leave no zombies."""
    evidence = host.launch("(sleep 0.2 & echo $!); echo up; sleep 60")
    wait_for(lambda: len(host.log_lines()) == 2)
    orphan = identify(int(host.log_lines()[0]))
    wait_for(lambda: orphan is None or identify(orphan["pid"]) != orphan)
    assert alive(evidence)


def test_exit_record_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the trainer dies does not cost the exit record."""
    monkeypatch.setattr("remote.agent.supervise.WRITE_AGAIN_SECONDS", 0.01)
    blocker = tmp_path / "run"
    blocker.write_text("a file where the folder should be")
    timer = threading.Timer(0.1, blocker.unlink)
    timer.start()
    write_patiently(blocker / "process-exit.json", {"exit_code": 0})
    timer.join()
    assert json.loads((blocker / "process-exit.json").read_text()) == {"exit_code": 0}


def test_exit_record_is_given_up_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its patience the failure is said, not swallowed."""
    monkeypatch.setattr("remote.agent.supervise.WRITE_PATIENCE_SECONDS", 0.0)
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError, match="run"):
        write_patiently(tmp_path / "run" / "process-exit.json", {})


def test_no_description_starts_nothing(host: AgentHost) -> None:
    """A launcher that died while it described the trainer leaves nothing running."""
    done = subprocess.run(
        [sys.executable, "-I", str(host.agent), "supervise"],
        input=b'{"argv": ["bash", "-c", "touch /tm',
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 126
    assert b"nothing started" in done.stderr
