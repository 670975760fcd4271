"""The watchdog as a process: it arms, looks, stops, and there is one of it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.agent.guard import Guard
from remote.agent.locks import locked
from remote.agent.presence import step_running, working
from remote.agent.process import DATA_ROOT_TAG, alive, command_line, send, tagged
from tests.remote.agent.agent_host import WATCHDOG, AgentHost, wait_for

SAVES = 'trap "echo saving; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
STUBBORN = 'trap "" TERM; echo ready; while :; do sleep 0.1; done'


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


@pytest.fixture
def off(host: AgentHost) -> Path:
    """A stop command's trace: it appends a line each time it is run."""
    return host.folder / "off.txt"


def stopper(off: Path) -> list[str]:
    return ["bash", "-c", 'echo "$CHARTER_STOP_REASON" >> "$0"', str(off)]


def state(host: AgentHost) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.layout.watchdog.read_text())
    return found


def watchdogs(host: AgentHost) -> list[int]:
    rows = tagged({DATA_ROOT_TAG: str(host.data_root)})
    return [row.pid for row in rows if " watchdog " in command_line(row.pid)]


def test_armed_only_after_its_own_word(host: AgentHost) -> None:
    """The evidence names a living process that checked itself and its deadlines."""
    evidence = host.arm()
    assert evidence["armed"] is True
    assert alive(evidence["watchdog"])
    assert evidence["self_check"]["ok"] is True
    assert {check["name"] for check in evidence["self_check"]["checks"]} == {
        "stop_command",
        "process_table",
        "deadlines",
        "clock",
    }
    assert 7190 < evidence["deadlines"]["stop_at_seconds"] <= 7200
    assert evidence["stop_argv"] == ["/bin/true"]


def test_arming_again_starts_no_second(host: AgentHost) -> None:
    """A live watchdog is changed, not doubled."""
    first = host.arm()
    second = host.arm(grant="grant-2", stop_at_seconds=9000, stop_argv=["/bin/false"])
    assert second["watchdog"] == first["watchdog"]
    assert second["deadlines"]["stop_at_seconds"] > 8900
    assert second["stop_argv"] == ["/bin/false"]
    assert watchdogs(host) == [first["watchdog"]["pid"]]


def test_stop_command_that_can_not_run_is_not_armed(host: AgentHost) -> None:
    """A stop command that isn't there is said at the arming, not at the deadline."""
    error = host.refusal("arm", watchdog={**WATCHDOG, "stop_argv": ["/no/such/off"]})
    assert error["kind"] == "remote_step_failed"
    assert "/no/such/off" in error["message"]


def test_dead_watchdog_is_revived_by_arm_and_contact(host: AgentHost) -> None:
    """A watchdog that was killed comes back with the next sign of life, deadlines kept."""
    first = host.arm(stop_at_seconds=5000)
    send(first["watchdog"], signal.SIGKILL)
    wait_for(lambda: not alive(first["watchdog"]))
    assert host.do("status")["watchdog"]["alive"] is False
    told = host.do("contact")
    assert (told["watchdog_alive"], told["revived"]) == (False, True)
    assert told["deadlines"]["stop_at_seconds"] <= 5000
    wait_for(lambda: host.do("status")["watchdog"]["alive"])
    again = host.arm(stop_at_seconds=5000)
    assert again["watchdog"] != first["watchdog"]
    assert len(watchdogs(host)) == 1


def test_contact_before_arming(host: AgentHost) -> None:
    """Without a watchdog contact says so instead of pretending."""
    assert host.refusal("contact")["kind"] == "not_found"


def test_idle_host_is_stopped_again_and_again(host: AgentHost, off: Path) -> None:
    """At the limit the stop command runs, and again while the host lives."""
    host.arm(stop_argv=stopper(off), idle_seconds=0.5, stop_retry_seconds=0.3)
    wait_for(lambda: off.exists() and len(off.read_text().split()) >= 3)
    assert set(off.read_text().split()) == {"idle"}
    wait_for(lambda: state(host)["stopping"]["last"] is not None)
    assert state(host)["stopping"]["last"]["exit_code"] == 0


def test_train_until_lets_the_trainer_save(host: AgentHost, off: Path) -> None:
    """TERM comes first; the exit record says by whom; the host is not stopped yet."""
    host.arm(stop_argv=stopper(off), train_until_seconds=1.5)
    host.launch(SAVES)
    record = host.exit_record()
    assert record["exit_code"] == 0
    assert record["stop"]["by"] == "watchdog"
    assert host.log_lines()[-1] == "saving"
    assert not off.exists()


def test_stop_at_kills_and_stops(host: AgentHost, off: Path) -> None:
    """At stop_at a trainer that ignores TERM is killed, with a record, and the host stopped."""
    host.arm(stop_argv=stopper(off), train_until_seconds=1, stop_at_seconds=2.5)
    host.launch(STUBBORN)
    wait_for(off.exists)
    assert "stop_at" in off.read_text()
    assert host.exit_record()["exit_code"] == 137


def test_stop_at_kills_an_unsupervised_trainer_with_a_record(host: AgentHost, off: Path) -> None:
    """Also without its supervisor: the watchdog writes the record itself."""
    host.arm(stop_argv=stopper(off), stop_at_seconds=3, train_until_seconds=3)
    evidence = host.launch(STUBBORN)
    send(evidence["supervisor"], signal.SIGKILL)
    record = host.exit_record()
    assert (record["exit_code"], record["observed"]) == (137, False)


def test_no_stop_command_is_said_loudly(host: AgentHost) -> None:
    """Without a command the watchdog can't stop the host: state and log say so."""
    evidence = host.arm(stop_argv=[], idle_seconds=0.3)
    assert evidence["self_check"]["checks"][0]["status"] == "SKIP"
    wait_for(lambda: (state(host)["stopping"] or {}).get("last"))
    assert state(host)["stopping"]["last"]["problem"] == "stop_unavailable"
    assert "STOP UNAVAILABLE" in (host.layout.charter / "watchdog.log").read_text()


def test_launch_after_train_until_is_refused(host: AgentHost) -> None:
    """Nothing is started that would be ended at once."""
    host.arm(train_until_seconds=0)
    error = host.refusal("launch", **host.launch_fields("true"))
    assert (error["kind"], error["exit_code"]) == ("guard_refused", 2)


def test_working_step_is_contact(host: AgentHost, off: Path) -> None:
    """While a step of the agent works the host is not idle; afterwards it is."""
    with working("environment", host.layout):
        assert not step_running(host.layout)  # nothing was ever called on this data root
    host.arm(stop_argv=stopper(off), idle_seconds=1)
    with working("status", host.layout):
        assert not step_running(host.layout)  # a question of the sweep keeps no host up
    with working("environment", host.layout):
        assert step_running(host.layout)
        before = state(host)["last_contact"]
        wait_for(lambda: state(host)["last_contact"] > before + 1.2)
        assert not off.exists()
    wait_for(off.exists)


def test_ends_with_a_released_host(host: AgentHost) -> None:
    """Data root and stop command gone: a released local host leaves no watchdog behind."""
    command = host.data_root / "off.sh"
    command.write_text("exit 0")
    evidence = host.arm(stop_argv=["/bin/sh", str(command)])
    shutil.rmtree(host.data_root)
    wait_for(lambda: not alive(evidence["watchdog"]))
    assert not host.data_root.exists()


def test_wiped_data_root_does_not_save_a_host(host: AgentHost, off: Path) -> None:
    """A rented host whose data root somebody removed is still stopped, from memory."""
    off.touch()
    host.arm(stop_argv=stopper(off), train_until_seconds=1, stop_at_seconds=1.5)
    shutil.rmtree(host.data_root)
    wait_for(lambda: "stop_at" in off.read_text())
    assert not host.data_root.exists()


def test_wiped_and_armed_anew_leaves_one(host: AgentHost, off: Path) -> None:
    """A wipe takes the lock along; of the two watchdogs that may then live one retires."""
    off.touch()
    host.arm(stop_argv=stopper(off))
    shutil.rmtree(host.layout.charter)
    evidence = host.arm(stop_argv=stopper(off), grant="grant-2")
    assert evidence["armed"] is True
    wait_for(lambda: len(watchdogs(host)) == 1)
    assert host.do("status")["watchdog"]["alive"] is True


def test_damaged_state_is_guarded_from_memory(host: AgentHost, off: Path) -> None:
    """A state file that became unreadable changes no deadline; steps say that it is damaged."""
    evidence = host.arm(stop_argv=stopper(off), train_until_seconds=1, stop_at_seconds=2)
    host.layout.watchdog.write_text("{")
    assert host.refusal("contact")["kind"] == "evidence_mismatch"
    wait_for(off.exists)
    assert alive(evidence["watchdog"])
    host.layout.watchdog.unlink()
    again = host.arm(grant="grant-2")
    assert again["watchdog"] == evidence["watchdog"]


def test_held_lock_does_not_stop_the_guard(
    host: AgentHost, off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that hangs while it holds the state's lock can't keep a host up."""
    monkeypatch.setattr("remote.agent.watchdog_state.LOCK_WAIT_SECONDS", 0.1)
    evidence = host.arm(stop_argv=["/bin/true"], idle_seconds=3600)
    send(evidence["watchdog"], signal.SIGKILL)
    wait_for(lambda: not alive(evidence["watchdog"]))
    guard = Guard(host.layout)
    assert guard.tick()
    assert guard.known is not None
    guard.known.update(stop_argv=stopper(off), stop_at=0.0)
    guard.on_disk = json.loads(host.layout.watchdog.read_text())
    with locked(host.layout.lock("watchdog-state"), 5, "the test's lock"):
        assert guard.tick()
    assert off.read_text().split() == ["stop_at"]
