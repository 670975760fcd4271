"""Starting the server and the runners of one home, and waiting until they are ready."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from deployments import services
from deployments.environment import LOOPBACK, api_password, process_environment
from deployments.loopback import answers, free_port
from deployments.manifest import RUNNERS, fingerprint
from experiment.clock import Clock
from experiment.errors import CharterError, StepTimeout
from experiment.paths import Home
from remote.agent.files import read_json_or_none

SERVER = "server"
SERVER_SECONDS = 180.0  # the first start creates the database; 8 to 14 s on an idle machine
RUNNER_SECONDS = 120.0
RUNNER_GRACE_SECONDS = 45.0  # Prefect gives each of its flow processes 30
POLL_SECONDS = 0.2
PORT_TRIES = 3


def start_server(home: Home, clock: Clock) -> services.Service:
    """A server on the port it had before, or on a free one; tried again when the port is taken."""
    known = services.recorded(home, SERVER)
    wanted = int(known.details["port"]) if known else 0
    for attempt in range(1, PORT_TRIES + 1):
        port = free_port(wanted)
        server = _launch_server(home, port, clock)
        try:
            await_server(home, server, clock)
        except StepTimeout:
            raise
        except CharterError as error:
            taken = any("already in use" in line for line in error.details)
            if not taken or attempt == PORT_TRIES:
                raise
            wanted = 0
        else:
            return server
    raise AssertionError("unreachable: the last attempt returns or raises")


def start_runners(home: Home, port: int, manifest: Path, clock: Clock) -> list[str]:
    """Start the runners that do not run, or that serve an older prefect.yaml or another port."""
    wanted = {"port": port, "manifest": str(manifest), "fingerprint": fingerprint(manifest)}
    started = []
    for name in RUNNERS:
        known = services.recorded(home, name)
        if known is not None and known.alive:
            if all(known.details.get(key) == value for key, value in wanted.items()):
                continue
            services.stop([known.identity], grace_seconds=RUNNER_GRACE_SECONDS, clock=clock)
        services.stop(services.strays(home, name), grace_seconds=RUNNER_GRACE_SECONDS, clock=clock)
        ready_file(home, name).unlink(missing_ok=True)
        services.start(
            home,
            name,
            [sys.executable, "-m", "deployments.runner", name, "--manifest", str(manifest)],
            cwd=manifest.parent,
            environment=process_environment(home, port),
            details=wanted,
            clock=clock,
        )
        started.append(name)
    return started


def await_server(home: Home, server: services.Service, clock: Clock) -> None:
    port = int(server.details["port"])
    _await(server, lambda: answers(home, port), SERVER_SECONDS, clock)


def await_runner(home: Home, name: str, clock: Clock) -> None:
    runner = services.recorded(home, name)
    assert runner is not None, "just started or found alive"
    _await(runner, lambda: ready_pid(home, name) is not None, RUNNER_SECONDS, clock)


def ready_file(home: Home, name: str) -> Path:
    """Written by a runner once its deployments are registered: `{"pid", "deployments"}`."""
    return home.server / f"{name}-ready.json"


def ready_pid(home: Home, name: str) -> int | None:
    """The runner's pid when it lives and has registered its deployments."""
    runner = services.recorded(home, name)
    mark = read_json_or_none(ready_file(home, name))
    if runner is None or mark is None or mark.get("pid") != runner.pid or not runner.alive:
        return None
    return runner.pid


def _launch_server(home: Home, port: int, clock: Clock) -> services.Service:
    environment = process_environment(home, port)
    environment |= {
        "PREFECT_SERVER_API_AUTH_STRING": api_password(home),
        "PREFECT_SERVER_API_HOST": LOOPBACK,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # SQLite answers "database is locked" after the default 10 s under three parallel runs.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    }
    argv = [sys.executable, "-m", "prefect", "server", "start"]
    return services.start(
        home,
        SERVER,
        [*argv, "--host", LOOPBACK, "--port", str(port)],
        cwd=home.server,
        environment=environment,
        details={"port": port},
        clock=clock,
    )


def _await(
    service: services.Service, ready: Callable[[], bool], seconds: float, clock: Clock
) -> None:
    """Wait until it is ready, and no longer than it lives.

    Raises:
        CharterError: it ended.
        StepTimeout: it is there and does not get ready.
    """
    deadline = clock.monotonic() + seconds
    while not ready():
        if not service.alive:
            raise CharterError(
                "a process ended while starting",
                service.name,
                hint=f"its log is {service.log}",
                details=services.tail(service.log),
            )
        if clock.monotonic() >= deadline:
            raise StepTimeout(
                "a process does not get ready",
                service.name,
                expected=f"an answer within {seconds:.0f} s",
                found=f"pid {service.pid} running and silent",
                hint=f"see {service.log}, then `charter down` and `charter up`",
            )
        clock.sleep(POLL_SECONDS)
