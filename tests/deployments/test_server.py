"""The server and runners of one home: started once, found again, ended to the last process."""

from __future__ import annotations

import os
import signal
import socket
import stat
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deployments import loopback, server, services, starting
from deployments.automations import ZOMBIES
from deployments.environment import server_record
from experiment.checks.outcome import Status
from experiment.clock import SystemClock
from experiment.errors import CharterError
from experiment.paths import Home
from remote.agent.files import write_json
from tests.deployments.served import MANIFEST

pytestmark = pytest.mark.prefect


def test_a_second_up_starts_nothing(served):
    """`up` on a running home finds the same processes and starts none."""
    before = server.inspect(served)
    again = server.up(served, manifest=MANIFEST)
    assert again.started == ()
    assert (again.pid, again.runners) == (before.pid, before.runners)
    assert again.complete


def test_a_flow_runs_in_a_process_of_this_home(served, api, until, tmp_path):
    """A run of a served deployment completes, in another process, with this home's environment."""
    run = api.start("experiments", "leave_mark", {"folder": str(tmp_path)})
    until(lambda: api.state(run) == "COMPLETED", "the flow run completes")
    pid, home = (tmp_path / "mark").read_text().split(" ", 1)
    assert home == str(served.root)
    assert int(pid) not in (os.getpid(), services.recorded(served, "experiments").pid)


def test_the_api_asks_for_the_password(served, api):
    """Without the password everything but the health check is refused; the file is private."""
    with urllib.request.urlopen(f"{api.url}/health", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{api.url}/admin/version", timeout=10)
    assert refused.value.code == 401
    refused.value.close()
    assert stat.S_IMODE(server.inspect(served).password_file.stat().st_mode) == 0o600


def test_deployments_are_those_of_the_file(api):
    """Entrypoint, schedule, limit and trigger arrive at the server as prefect.yaml states them."""
    sweep = api.call("GET", "/deployments/name/sweep/sweep")
    assert sweep["entrypoint"] == "tests.deployments.flow_probe.sweep"
    assert sweep["schedules"][0]["schedule"]["interval"] == 86400
    assert sweep["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert sweep["paused"] is False
    rules = api.call("POST", "/automations/filter", {})
    triggers = [rule["trigger"] for rule in rules if rule["name"] != ZOMBIES]
    assert sorted(triggers[0]["expect"]) == ["prefect.flow-run.Crashed", "prefect.flow-run.Failed"]


def test_two_ups_at_once_start_one_runner(served, until):
    """A killed runner is replaced by exactly one, whoever asks and however many at once."""
    os.kill(services.recorded(served, "reapers").pid, signal.SIGKILL)
    until(lambda: server.inspect(served).runners["reapers"] is None, "the runner is gone")
    with ThreadPoolExecutor(2) as pool:
        ups = list(pool.map(lambda _: server.up(served, manifest=MANIFEST), range(2)))
    assert sorted(each.started for each in ups) == [(), ("reapers",)]
    assert ups[0].runners == ups[1].runners


def test_a_flow_outlives_its_killed_runner_until_down(served, api, until, tmp_path):
    """A runner's death leaves the flow working; `down` ends the flow too, and `up` goes on."""
    run = api.start("experiments", "leave_mark", {"folder": str(tmp_path), "seconds": 120})
    until((tmp_path / "mark").exists, "the flow works")
    os.kill(services.recorded(served, "experiments").pid, signal.SIGKILL)
    until(lambda: server.inspect(served).runners["experiments"] is None, "the runner is gone")
    assert [each["pid"] for each in services.flow_processes(served)] == [
        int((tmp_path / "mark").read_text().split()[0])
    ]
    port = api.url
    ended = server.down(served)
    assert "flow runs" in ended.stopped
    assert services.flow_processes(served) == []
    again = server.up(served, manifest=MANIFEST)
    assert again.started == ("server", "experiments", "reapers")
    assert again.url == port, "the dashboard's address stays the same"
    assert api.state(run) in ("CRASHED", "CANCELLED", "RUNNING")


def test_doctor_finds_all_running(served):
    """Each of the three passes while it runs."""
    outcomes = server.examine(served)
    assert [outcome.status for outcome in outcomes] == [Status.PASS] * 3


def test_doctor_skips_a_home_without_a_server(home):
    """A home that never had a server is no fault, and looking creates nothing."""
    assert [outcome.status for outcome in server.examine(home)] == [Status.SKIP]
    assert not home.root.exists()


def test_down_without_a_server_does_nothing(home):
    """`down` on a home that was never up ends nothing and creates nothing."""
    assert server.down(home).stopped == []
    assert not home.root.exists()


def test_a_start_that_fails_shows_the_log(tmp_path, home):
    """A runner whose flow does not import ends `up` with its last lines, and `down` cleans up."""
    manifest = Path(tmp_path) / "prefect.yaml"
    manifest.write_text(
        "deployments:\n  - {name: lost, entrypoint: flows.not_there.lost, tags: [experiments]}\n"
    )
    write_json(server_record(home), {"port": 1})
    starting.start_runners(home, 1, manifest, SystemClock())
    with pytest.raises(CharterError) as failed:
        starting.await_runner(home, "experiments", SystemClock())
    assert any("not_there" in line for line in failed.value.details)
    server.down(home)
    assert server.inspect(home).runners == {"experiments": None, "reapers": None}


def test_a_taken_port_is_left_to_its_owner():
    """The port of last time is taken again when it is free, and left alone when it is not."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert loopback.free_port(taken) not in (0, taken)
    assert loopback.free_port(taken) == taken


def test_homes_are_apart(served, home: Home):
    """Another home sees nothing of the running one."""
    assert server.inspect(home).runners == {"experiments": None, "reapers": None}
