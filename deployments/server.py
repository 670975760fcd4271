"""The Prefect server of one home and its two runners, on loopback, in processes of their own.

`up` starts what is not running and waits until all of it answers; `down` ends what `up` started
and nothing else. Neither touches a host: a training goes on without any of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deployments import services
from deployments.environment import (
    LOOPBACK,
    api_url,
    client_environment,
    connect,
    password_file,
)
from deployments.loopback import answers
from deployments.manifest import MANIFEST, RUNNERS, read_manifest
from deployments.starting import (
    RUNNER_GRACE_SECONDS,
    RUNNER_SECONDS,
    SERVER,
    SERVER_SECONDS,
    await_runner,
    await_server,
    ready_file,
    ready_pid,
    start_runners,
    start_server,
)
from experiment.checks.outcome import Outcome, Status
from experiment.clock import Clock, SystemClock
from experiment.errors import Busy, StepTimeout
from experiment.paths import Home
from remote.agent.errors import AgentError
from remote.agent.locks import locked

__all__ = ["Ended", "Server", "client_environment", "connect", "down", "examine", "inspect", "up"]

LOCK_SECONDS = SERVER_SECONDS + RUNNER_SECONDS
SERVER_GRACE_SECONDS = 15.0

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
            server = start_server(home, clock)
            started.append(SERVER)
        port = int(server.details["port"])
        started += start_runners(home, port, manifest, clock)
        progress("waiting for the runners")
        for name in RUNNERS:
            await_runner(home, name, clock)
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
        runners={name: ready_pid(home, name) for name in RUNNERS},
        answers=alive and answers(home, port),
        started=started,
    )


def _running_server(home: Home, clock: Clock) -> services.Service | None:
    """The recorded server if it lives and answers (or is still starting); ended if it does not."""
    server = services.recorded(home, SERVER)
    if server is not None and server.alive:
        with contextlib.suppress(StepTimeout):
            await_server(home, server, clock)
            return server
        services.stop([server.identity], grace_seconds=SERVER_GRACE_SECONDS, clock=clock)
    services.stop(services.strays(home, SERVER), grace_seconds=SERVER_GRACE_SECONDS, clock=clock)
    return None


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
