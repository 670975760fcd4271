"""The Prefect server of one home and its two runners, on loopback, in processes of their own.

`up` starts what is not running and waits until all of it answers; `down` ends what `up` started
and nothing else. Neither touches a host: a training goes on without any of these.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deployments import services
from deployments.environment import (
    LOOPBACK,
    api_password,
    api_url,
    client_environment,
    connect,
    password_file,
    process_environment,
)
from deployments.manifest import MANIFEST, RUNNERS, fingerprint, read_manifest
from experiment.checks.outcome import Outcome, Status
from experiment.clock import Clock, SystemClock
from experiment.errors import Busy, CharterError, StepTimeout
from experiment.paths import Home
from remote.agent.errors import AgentError
from remote.agent.files import read_json_or_none
from remote.agent.locks import locked

__all__ = ["Ended", "Server", "client_environment", "connect", "down", "examine", "inspect", "up"]

SERVER = "server"
SERVER_SECONDS = 180.0  # the first start creates the database; 8 to 14 s on an idle machine
RUNNER_SECONDS = 120.0
ANSWER_SECONDS = 3.0
LOCK_SECONDS = SERVER_SECONDS + RUNNER_SECONDS
RUNNER_GRACE_SECONDS = 45.0  # Prefect gives each of its flow processes 30
SERVER_GRACE_SECONDS = 15.0
POLL_SECONDS = 0.2
PORT_TRIES = 3

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Server:
    """What is there for this home.

    Attributes:
        url: the API, with `/api`.
        dashboard: what a person opens.
        password_file: holds `user:password`, which the dashboard asks for.
        pid: of the server, None when it does not run.
        runners: name → pid, None for one that does not run.
        answers: the API answers with our password.
        started: names that this call of `up` started.
    """

    url: str
    dashboard: str
    password_file: Path
    pid: int | None
    runners: Mapping[str, int | None]
    answers: bool
    started: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.answers and all(pid is not None for pid in self.runners.values())


@dataclass
class Ended:
    """What `down` did: names that ended, and those among them that had to be killed."""

    stopped: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)


def up(
    home: Home,
    progress: Progress = lambda _text: None,
    *,
    manifest: Path | None = None,
    clock: Clock | None = None,
) -> Server:
    """Start the server and the runners that are not running; safe to call again and at once.

    Args:
        progress: told in a few words what is being waited for.
        manifest: the prefect.yaml whose deployments the runners serve, from its own folder;
            Charter's own unless given.

    Raises:
        Busy: another `up` or `down` of this home did not finish in time.
        CharterError: a process ended while starting; its last lines are in `details`.
        StepTimeout: a process did not answer in time; what was started is left as it is.
        ContractInvalid, NotFound: as `read_manifest`.
    """
    clock = clock or SystemClock()
    manifest = manifest or MANIFEST
    read_manifest(manifest)
    with _alone(home):
        started: list[str] = []
        server = _running_server(home, clock)
        if server is None:
            _end_runners(home, clock)
            progress("starting the Prefect server (about 10 s)")
            server = _start_server(home, clock)
            started.append(SERVER)
        port = int(server.details["port"])
        started += _start_runners(home, port, manifest, clock)
        _await_server(home, server, clock)
        progress("waiting for the runners")
        for name in RUNNERS:
            _await_runner(home, name, clock)
        return _look(home, tuple(started))


def down(
    home: Home, progress: Progress = lambda _text: None, *, clock: Clock | None = None
) -> Ended:
    """End the runners, the flow processes they left and the server, and wait until they are gone.

    A running flow is a controller: ending it detaches it, and what it watches goes on.

    Raises:
        Busy: another `up` or `down` of this home did not finish in time.
    """
    clock = clock or SystemClock()
    ended = Ended()
    if not home.server.is_dir():
        return ended
    with _alone(home):
        progress("ending the runners")
        for name in RUNNERS:
            _end(home, name, RUNNER_GRACE_SECONDS, clock, ended)
        orphans = services.flow_processes(home)
        if orphans:
            killed = services.stop(orphans, grace_seconds=RUNNER_GRACE_SECONDS, clock=clock)
            _note(ended, "flow runs", killed)
        progress("ending the server")
        _end(home, SERVER, SERVER_GRACE_SECONDS, clock, ended)
    return ended


def inspect(home: Home) -> Server:
    """What runs now and whether it answers; changes nothing."""
    return _look(home, ())


def examine(home: Home) -> list[Outcome]:
    """`doctor`'s checks of the server: SKIP where none of it runs, as after `charter down`."""
    found = inspect(home)
    if found.pid is None and not any(found.runners.values()):
        return [Outcome("server", Status.SKIP, "not running", "", "`charter up` starts it")]
    state = "answers" if found.answers else ("silent" if found.pid else "not running")
    outcomes = [
        Outcome(
            "server",
            Status.PASS if found.answers else Status.FAIL,
            f"{state} at {found.dashboard}",
            "an answer with this home's password",
            "" if found.answers else f"`charter up`; its log: {home.logs / 'server.log'}",
        )
    ]
    for name, pid in found.runners.items():
        fix = "" if pid else f"`charter up`; its log: {home.logs / f'{name}.log'}"
        text = f"pid {pid}" if pid else "not running"
        status = Status.PASS if pid else Status.FAIL
        outcomes.append(Outcome(f"runner {name}", status, text, "running", fix))
    return outcomes


def _look(home: Home, started: tuple[str, ...]) -> Server:
    server = services.recorded(home, SERVER)
    alive = server is not None and server.alive
    port = int(server.details["port"]) if server else 0
    return Server(
        url=api_url(port) if server else "",
        dashboard=f"http://{LOOPBACK}:{port}/" if server else "",
        password_file=password_file(home),
        pid=server.pid if server and alive else None,
        runners={name: _ready_pid(home, name) for name in RUNNERS},
        answers=alive and _answers(home, port),
        started=started,
    )


def _running_server(home: Home, clock: Clock) -> services.Service | None:
    """The recorded server if it lives and answers (or is still starting); ended if it does not."""
    server = services.recorded(home, SERVER)
    if server is not None and server.alive:
        with contextlib.suppress(StepTimeout):
            _await_server(home, server, clock)
            return server
        services.stop([server.identity], grace_seconds=SERVER_GRACE_SECONDS, clock=clock)
    services.stop(services.strays(home, SERVER), grace_seconds=SERVER_GRACE_SECONDS, clock=clock)
    return None


def _start_server(home: Home, clock: Clock) -> services.Service:
    """A server on the port it had before, or on a free one; tried again when the port is taken."""
    known = services.recorded(home, SERVER)
    wanted = int(known.details["port"]) if known else 0
    for attempt in range(1, PORT_TRIES + 1):
        port = _free_port(wanted)
        server = _launch_server(home, port, clock)
        try:
            _await_server(home, server, clock)
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


def _start_runners(home: Home, port: int, manifest: Path, clock: Clock) -> list[str]:
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


def ready_file(home: Home, name: str) -> Path:
    """Written by a runner once its deployments are registered: `{"pid", "deployments"}`."""
    return home.server / f"{name}-ready.json"


def _await_server(home: Home, server: services.Service, clock: Clock) -> None:
    port = int(server.details["port"])
    _await(server, lambda: _answers(home, port), SERVER_SECONDS, clock)


def _await_runner(home: Home, name: str, clock: Clock) -> None:
    runner = services.recorded(home, name)
    assert runner is not None, "just started or found alive"
    _await(runner, lambda: _ready_pid(home, name) is not None, RUNNER_SECONDS, clock)


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


def _ready_pid(home: Home, name: str) -> int | None:
    """The runner's pid when it lives and has registered its deployments."""
    runner = services.recorded(home, name)
    mark = read_json_or_none(ready_file(home, name))
    if runner is None or mark is None or mark.get("pid") != runner.pid or not runner.alive:
        return None
    return runner.pid


def _answers(home: Home, port: int) -> bool:
    """Whether our server is healthy there and takes our password (another's would not)."""
    health = urllib.request.Request(f"{api_url(port)}/health")
    version = urllib.request.Request(f"{api_url(port)}/admin/version")
    token = base64.b64encode(api_password(home).encode()).decode("ascii")
    version.add_header("Authorization", f"Basic {token}")
    return _is_ok(health) and _is_ok(version)


def _is_ok(request: urllib.request.Request) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _free_port(wanted: int) -> int:
    """The wanted port if nobody listens there, else one that the system picks."""
    for port in filter(None, (wanted,)):
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return int(probe.getsockname()[1])


def _end_runners(home: Home, clock: Clock) -> None:
    """Runners of a server that is gone: they would only report to nobody."""
    for name in RUNNERS:
        _end(home, name, RUNNER_GRACE_SECONDS, clock, Ended())


def _end(home: Home, name: str, grace_seconds: float, clock: Clock, ended: Ended) -> None:
    known = services.recorded(home, name)
    targets = [*services.strays(home, name)]
    if known is not None and known.alive:
        targets.append(known.identity)
    if targets:
        _note(ended, name, services.stop(targets, grace_seconds=grace_seconds, clock=clock))
    ready_file(home, name).unlink(missing_ok=True)
    if name != SERVER:  # the server's record keeps its port for the next start
        services.forget(home, name)


def _note(ended: Ended, name: str, killed: bool) -> None:
    ended.stopped.append(name)
    if killed:
        ended.killed.append(name)


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[None]:
    """One `up` or `down` at a time; a second one waits for the first and finds its work done."""
    home.server.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with locked(home.server / "lock", LOCK_SECONDS, "this home's server"):
            yield
    except AgentError as error:
        raise Busy("another `charter up` or `charter down` is at work", str(home.root)) from error
