"""Processes that outlive their starter are known by more than their pid."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deployments import services
from experiment.clock import SystemClock
from remote.agent import process
from remote.agent.files import write_json

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"
)


@pytest.fixture
def start(home):
    def begin(code: str) -> services.Service:
        home.server.mkdir(parents=True, exist_ok=True)
        return services.start(
            home,
            "experiments",
            [sys.executable, "-c", code],
            cwd=home.server,
            environment={**os.environ, "CHARTER_HOME": str(home.root)},
            details={"port": 1},
            clock=SystemClock(),
        )

    yield begin
    known = services.recorded(home, "experiments")
    if known:
        services.stop([known.identity], grace_seconds=0.2, clock=SystemClock())


def test_a_service_is_found_again_and_ended(home, start):
    """The record finds the same process in a session of its own; TERM ends it."""
    started = start("import time; time.sleep(60)")
    again = services.recorded(home, "experiments")
    assert again.alive
    assert again.identity == started.identity
    assert os.getsid(started.pid) == started.pid != os.getsid(0)
    assert services.stop([again.identity], grace_seconds=10, clock=SystemClock()) is False
    assert not again.alive


def test_a_process_that_ignores_term_is_killed_and_said_so(start, until):
    """After the grace comes KILL, and the caller learns of it."""
    started = start(STUBBORN)
    until(lambda: "up" in services.tail(started.log), "it ignores TERM")
    assert services.stop([started.identity], grace_seconds=0.5, clock=SystemClock()) is True
    assert not started.alive


def test_a_reused_pid_is_not_ours(home):
    """A record whose pid now belongs to another process counts as dead and is never signalled."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        identity = {**process.identify(other.pid), "start": 1}
        write_json(
            services.record_file(home, "experiments"),
            {"name": "experiments", "identity": identity, "log": str(home.root / "log")},
        )
        known = services.recorded(home, "experiments")
        assert not known.alive
        services.stop([known.identity], grace_seconds=0.2, clock=SystemClock())
        assert other.poll() is None
        other.kill()


def test_a_process_without_a_record_is_a_stray(home, start):
    """Had `up` died before writing the record, the process would still be found by its tags."""
    started = start("import time; time.sleep(60)")
    assert services.strays(home, "experiments") == []
    services.forget(home, "experiments")
    assert services.strays(home, "experiments") == [started.identity]
    services.stop([started.identity], grace_seconds=10, clock=SystemClock())


def test_a_damaged_record_counts_as_none(home):
    """Half a record (a full disk) is no reason to fail, nor to signal anything."""
    home.server.mkdir(parents=True)
    services.record_file(home, "server").write_text('{"name": "server"')
    assert services.recorded(home, "server") is None
