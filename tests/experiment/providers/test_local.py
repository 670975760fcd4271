"""The life of local instances, their bad habits, and what they leave behind: nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from experiment.clock import SystemClock
from experiment.errors import Busy, HostUnreachable, NotFound, RemoteStepFailed, UsageError
from experiment.hosts.base import Host
from experiment.hosts.connect import close_all, connect
from experiment.paths import Home
from experiment.providers.base import Instance
from experiment.providers.local import LocalProvider
from tests.twins.rented_box import (
    folder_of,
    processes_naming,
    provider_of,
    rented_box,
    request_for,
    return_box,
    until,
    wait_for,
)

KINDS = [
    pytest.param({}, marks=pytest.mark.sshd, id="ssh"),
    pytest.param({"CHARTER_LOCAL_SSHD": "none"}, id="no-ssh"),
]
# Outlives its session, its parent and its streams, as an escaped grandchild of a trainer does.
ESCAPE = (
    "import os, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "print(os.getpid(), flush=True)\n"
    "null = os.open(os.devnull, os.O_RDWR)\n"
    "[os.dup2(null, n) for n in range(3)]\n"
    "time.sleep(600)\n"
)


def host_of(instance: Instance, home: Home) -> Host:
    assert instance.endpoint is not None
    return connect(instance.endpoint, home)


def escape(host: Host) -> psutil.Process:
    return psutil.Process(int(host.run([sys.executable, "-c", ESCAPE], timeout=20).stdout))


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("environ", KINDS)
def test_the_whole_life(home: Home, environ: dict[str, str]) -> None:
    """Create, use, off, on again, off, release: segments close, data stays, nothing is left."""
    provider = provider_of(home, **environ)
    created = provider.create(request_for("box-1", rate="2.50"))
    assert created.state in ("starting", "running")
    running = wait_for(provider, "box-1", "running")
    assert (running.rate, running.currency) == (Decimal("2.50"), "CNY")
    assert running.stopped_at is None
    assert running.data_root == str(home.hosts / "box-1" / "data")
    host = host_of(running, home)
    host.write(b"kept", f"{running.data_root}/kept")
    told = host.run(["env"], timeout=20).stdout.decode()
    for line in ("CHARTER_ROLE=host", "CHARTER_INSTANCE=box-1", f"HOME={home.hosts}/box-1/home"):
        assert line in told
    child = escape(host)

    provider.power_off("box-1")
    off = wait_for(provider, "box-1", "off")
    assert gone(child)
    assert off.endpoint is None
    assert off.stopped_at is not None
    assert len(off.segments) == 1

    provider.power_on("box-1")
    again = wait_for(provider, "box-1", "running")
    assert host_of(again, home).read(f"{again.data_root}/kept") == b"kept"
    assert [stop is None for _, stop in again.segments] == [False, True]
    with pytest.raises(Busy):
        provider.release("box-1")

    close_all()
    return_box(provider, "box-1")
    released = provider.status("box-1")
    assert released.state == "released"
    assert all(stop is not None for _, stop in released.segments)
    assert provider.find("box-1") is None
    assert list(home.hosts.iterdir()) == []
    until(lambda: not processes_naming(home.root), "no process is left")


def test_without_ssh_it_says_so(home: Home) -> None:
    """Where no sshd can be had the instance works all the same, and nobody claims SSH."""
    with rented_box(home, CHARTER_LOCAL_SSHD="none") as (_, instance):
        assert instance.involves_ssh is False
        assert instance.endpoint is not None
        assert instance.endpoint.kind == "local"
        assert any("no SSH is involved" in note for note in instance.notes)


@pytest.mark.sshd
def test_with_ssh_it_is_a_real_server(home: Home) -> None:
    """The endpoint is a pinned key on a high port of loopback; private files are private."""
    with rented_box(home) as (_, instance):
        assert instance.involves_ssh is True
        found = instance.endpoint
        assert found is not None
        assert found.key_path is not None
        assert (found.kind, found.host) == ("ssh", "127.0.0.1")
        assert found.port > 1024
        assert (found.host_key or "").startswith("ssh-ed25519 ")
        assert stat.S_IMODE(found.key_path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder_of(home, "box-1").record_file.stat().st_mode) == 0o600


def test_a_name_is_rented_once(home: Home) -> None:
    """Eight controllers that create the same name get one instance with one meter."""
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(
                lambda _: provider_of(home, CHARTER_LOCAL_SSHD="none").create(request_for("box-1")),
                range(8),
            )
        )
    provider = provider_of(home)
    try:
        assert {instance.id for instance in made} == {"box-1"}
        found = wait_for(provider, "box-1", "running")
        assert len(found.segments) == 1
        assert [instance.name for instance in provider.list()] == ["box-1"]
        assert [path.name for path in home.hosts.iterdir()] == ["box-1"]
    finally:
        return_box(provider, "box-1")


def test_an_unclear_create_is_settled_by_name(home: Home) -> None:
    """`find` says what there is; a create that died before power-on is finished by the next."""
    provider = provider_of(home, CHARTER_LOCAL_SSHD="none")
    assert provider.find("box-1") is None
    provider._build(folder_of(home, "box-1"), request_for("box-1"))
    found = provider.find("box-1")
    assert found is not None
    assert (found.state, found.segments) == ("off", ())
    assert provider.create(request_for("box-1")).segments
    return_box(provider, "box-1")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 101])
def test_a_name_that_is_no_folder_is_refused(home: Home, name: str) -> None:
    """Names become folders: anything else is refused before anything is made."""
    with pytest.raises(UsageError):
        provider_of(home).create(request_for(name))
    assert not home.hosts.exists()


def test_asking_twice_is_no_error(home: Home) -> None:
    """Power on, power off and release may be repeated; an unknown instance is named."""
    provider = provider_of(home, CHARTER_LOCAL_SSHD="none")
    provider.create(request_for("box-1"))
    provider.power_on("box-1")
    provider.power_off("box-1")
    provider.power_off("box-1")
    wait_for(provider, "box-1", "off")
    provider.power_off("box-1")
    provider.release("box-1")
    provider.release("box-1")
    provider.power_off("box-1")
    with pytest.raises(NotFound):
        provider.power_on("box-1")
    assert provider.status("never-was").state == "lost"


def test_the_host_can_stop_itself(home: Home) -> None:
    """`stop_argv`, run on the host, ends the meter; it is no system command."""
    with rented_box(home, CHARTER_LOCAL_SSHD="none") as (provider, instance):
        assert instance.stop_argv[0] == "/bin/sh"
        assert Path(instance.stop_argv[1]).is_relative_to(home.hosts / "box-1")
        # The script may be ended by the very power cut that it asked for.
        host_of(instance, home).run(instance.stop_argv, timeout=20)
        assert wait_for(provider, "box-1", "off").stopped_at is not None
        close_all()


def test_only_its_own_processes_end(home: Home, tmp_path: Path) -> None:
    """A neighbour's and a namesake's processes live on, whatever this instance does."""
    other_home = Home(tmp_path / "other")
    neighbour = subprocess.Popen(["sleep", "600"])
    with rented_box(other_home, CHARTER_LOCAL_SSHD="none") as (_, namesake):
        theirs = escape(host_of(namesake, other_home))
        with rented_box(home, CHARTER_LOCAL_SSHD="none") as (_, instance):
            mine = escape(host_of(instance, home))
        assert gone(mine)
        assert not gone(theirs)
        assert neighbour.poll() is None
        assert provider_of(other_home).status("box-1").state == "running"
        close_all()
    neighbour.kill()
    neighbour.wait()


def test_the_controllers_secrets_stay_out(home: Home) -> None:
    """Neither the host nor the meter gets more of the environment than network settings."""
    secret = "s3cr3t-of-the-controller"
    with rented_box(
        home, CHARTER_LOCAL_SSHD="none", HF_TOKEN=secret, CHARTER_FAULT=secret, PIP_RETRIES="7"
    ) as (_, instance):
        told = host_of(instance, home).run(["env"], timeout=20).stdout.decode()
        assert "PIP_RETRIES=7" in told
        assert secret not in told
        for path in (home.hosts / "box-1").rglob("*"):
            assert not path.is_file() or secret not in path.read_text("utf-8", "replace")
        meter = folder_of(home, "box-1").meter()["meter"]
        assert secret not in str(psutil.Process(meter["pid"]).environ())
        close_all()


def test_the_base_environments_python_comes_first(home: Home, tmp_path: Path) -> None:
    """`CHARTER_LOCAL_BASE` names what the box offers; one without Python is refused."""
    base = tmp_path / "base"
    (base / "bin").mkdir(parents=True)
    with pytest.raises(NotFound) as failed:
        provider_of(home, CHARTER_LOCAL_BASE=str(base)).create(request_for("box-1"))
    assert failed.value.exit_code == 127
    assert not home.hosts.exists() or not list(home.hosts.iterdir())
    (base / "bin" / "python3").symlink_to(sys.executable)
    with rented_box(home, CHARTER_LOCAL_SSHD="none", CHARTER_LOCAL_BASE=str(base)) as (_, box):
        found = host_of(box, home).run(["sh", "-c", "command -v python3"], timeout=20)
        assert found.stdout.decode().strip() == str(base / "bin" / "python3")
        close_all()


# --- bad habits ---------------------------------------------------------------------------------


def habits(text: str, *, ssh: bool = False) -> dict[str, str]:
    return {"CHARTER_LOCAL_HABITS": text, **({} if ssh else {"CHARTER_LOCAL_SSHD": "none"})}


def test_slow_start(home: Home) -> None:
    """It bills from the start, says `starting`, has no endpoint, and can be stopped meanwhile."""
    provider = provider_of(home, **habits("slow_start=600"))
    starting = provider.create(request_for("box-1"))
    assert starting.state == "starting"
    assert starting.endpoint is None
    assert starting.started_at is not None
    provider.power_off("box-1")
    wait_for(provider, "box-1", "off")
    provider.release("box-1")


def test_late_stop(home: Home) -> None:
    """Between the request and the end it is `stopping`, still bills, and can't be switched on."""
    with rented_box(home, **habits("late_stop=1")) as (provider, _):
        provider.power_off("box-1")
        stopping = wait_for(provider, "box-1", "stopping")
        assert stopping.stopped_at is None
        with pytest.raises(Busy):
            provider.power_on("box-1")
        off = wait_for(provider, "box-1", "off")
        ((begun, ended),) = off.segments
        assert ended is not None
        assert (ended - begun).total_seconds() >= 1


@pytest.mark.sshd
def test_changed_port(home: Home) -> None:
    """The address may differ after a power cycle; without the habit it is the same again."""
    for environ, same in ((habits("", ssh=True), True), (habits("changed_port", ssh=True), False)):
        with rented_box(home, **environ) as (provider, before):
            provider.power_off("box-1")
            wait_for(provider, "box-1", "off")
            provider.power_on("box-1")
            after = wait_for(provider, "box-1", "running")
            assert before.endpoint is not None
            assert after.endpoint is not None
            assert (after.endpoint.port == before.endpoint.port) is same
            assert host_of(after, home).run(["true"], timeout=10).returncode == 0
            close_all()


@pytest.mark.sshd
def test_an_sshd_that_never_comes(home: Home) -> None:
    """`running` is not "sshd answers": exit 75, and the power can be cut all the same."""
    with rented_box(home, **habits("no_sshd", ssh=True)) as (_, instance):
        with pytest.raises(HostUnreachable):
            host_of(instance, home).run(["true"], timeout=3)
        close_all()


def test_a_lost_instance(home: Home) -> None:
    """It vanishes from every answer with all its processes, its segment is closed there."""
    provider = provider_of(home, **habits("lost_after=0.5"))
    provider.create(request_for("box-1"))
    child = escape(host_of(wait_for(provider, "box-1", "running"), home))
    lost = wait_for(provider, "box-1", "lost")
    assert lost.stopped_at is not None
    assert gone(child)
    assert provider.find("box-1") is None
    assert provider.list() == []
    with pytest.raises(NotFound):
        provider.power_on("box-1")
    provider.power_off("box-1")
    provider.release("box-1")
    assert list(home.hosts.iterdir()) == []
    close_all()


def test_another_rate_than_the_approved_one(home: Home) -> None:
    """The provider's price is what the instance says, not what was asked for."""
    with rented_box(home, **habits("rate=9.75")) as (_, instance):
        assert instance.rate == Decimal("9.75")


# --- the meter dies -----------------------------------------------------------------------------


def kill_meter(home: Home, name: str = "box-1") -> None:
    os.kill(folder_of(home, name).meter()["meter"]["pid"], signal.SIGKILL)
    until(lambda: not folder_of(home, name).meter_lives(), "the meter is dead")


@pytest.mark.sshd
def test_a_killed_meter_with_work_left(home: Home) -> None:
    """`unknown`, still billing and reachable; power_off ends what was left, and says when."""
    provider = provider_of(home)
    provider.create(request_for("box-1"))
    running = wait_for(provider, "box-1", "running")
    child = escape(host_of(running, home))
    kill_meter(home)
    unknown = provider.status("box-1")
    assert unknown.state == "unknown"
    assert unknown.stopped_at is None
    assert host_of(unknown, home).run(["true"], timeout=10).returncode == 0
    provider.power_off("box-1")
    off = provider.status("box-1")
    assert off.state == "off"
    assert off.stopped_at is not None
    assert gone(child)
    assert abs((SystemClock().now() - off.stopped_at).total_seconds()) < 10
    close_all()
    provider.release("box-1")
    until(lambda: not processes_naming(home.root), "no process is left")


def test_a_killed_meter_with_nothing_left(home: Home) -> None:
    """As after a power cut: off, with the segment closed at the last heartbeat, and on again."""
    provider = provider_of(home, CHARTER_LOCAL_SSHD="none")
    provider.create(request_for("box-1"))
    wait_for(provider, "box-1", "running")
    kill_meter(home)
    heartbeat = folder_of(home, "box-1").meter()["heartbeat_at"]
    off = provider.status("box-1")
    assert off.state == "off"
    assert off.stopped_at is not None
    assert off.stopped_at.isoformat()[:19] == heartbeat[:19]
    provider.power_on("box-1")
    assert [stop is None for _, stop in wait_for(provider, "box-1", "running").segments] == [
        False,
        True,
    ]
    return_box(provider, "box-1")


def test_release_cleans_up_after_a_killed_meter(home: Home) -> None:
    """Release from `unknown` ends the leftovers first."""
    provider = provider_of(home, CHARTER_LOCAL_SSHD="none")
    provider.create(request_for("box-1"))
    child = escape(host_of(wait_for(provider, "box-1", "running"), home))
    kill_meter(home)
    assert provider.status("box-1").state == "unknown"
    provider.release("box-1")
    assert gone(child)
    assert list(home.hosts.iterdir()) == []
    close_all()


def test_term_for_the_meter_is_a_power_cut(home: Home) -> None:
    """A machine that shuts down in order closes the segment in order."""
    with rented_box(home, CHARTER_LOCAL_SSHD="none") as (provider, _):
        os.kill(folder_of(home, "box-1").meter()["meter"]["pid"], signal.SIGTERM)
        assert wait_for(provider, "box-1", "off").stopped_at is not None


@pytest.mark.sshd
def test_a_removed_folder_takes_its_meter_with_it(home: Home) -> None:
    """Somebody's `rm -rf` leaves no process behind."""
    provider = provider_of(home)
    provider.create(request_for("box-1"))
    child = escape(host_of(wait_for(provider, "box-1", "running"), home))
    meter = psutil.Process(folder_of(home, "box-1").meter()["meter"]["pid"])
    (home.hosts / "box-1").rename(home.root / "aside")
    until(lambda: gone(meter) and gone(child), "meter and work ended")
    assert provider.status("box-1").state == "lost"
    assert not (home.hosts / "box-1").exists()
    close_all()


@pytest.mark.sshd
def test_an_sshd_that_ended_comes_back(home: Home) -> None:
    """As on a real box, the server is started again on the same port."""
    with rented_box(home) as (_, instance):
        folder = folder_of(home, "box-1")
        first = folder.meter()["sshd"]
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: folder.meter()["sshd"] not in (None, first), "sshd is back")
        assert host_of(instance, home).run(["true"], timeout=10).returncode == 0
        close_all()


@pytest.mark.sshd
def test_an_sshd_that_cannot_start_is_told_and_leaves_nothing(home: Home) -> None:
    """`create` fails with sshd's own reason before anything is rented."""
    broken = home.root.parent / "sshd"
    broken.write_text("#!/bin/sh\necho broken on purpose >&2\nexit 255\n")
    broken.chmod(0o755)
    with pytest.raises(RemoteStepFailed, match="broken on purpose"):
        provider_of(home, CHARTER_LOCAL_SSHD=str(broken)).create(request_for("box-1"))
    assert list(home.hosts.iterdir()) == []


def test_instances_are_values(home: Home) -> None:
    """What a provider answered can't be changed afterwards."""
    found = provider_of(home).status("nothing")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.state = "running"  # type: ignore[misc]
    assert isinstance(provider_of(home), LocalProvider)
