"""The variables that tie a process of ours to this home's own Prefect server.

Nothing here imports Prefect: its settings are read once, at import, so the environment has to be
right before. A person's own Prefect profile, cloud key or server is never touched nor used.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from experiment.errors import HostUnreachable
from experiment.paths import Home
from remote.agent.files import read_json_or_none, write_atomic

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 2
HEARTBEAT_SECONDS = 30  # the smallest that Prefect takes; a zombie is noticed after three

# Settings that a person may give Charter's own server and processes from outside.
FROM_OUTSIDE = ("PREFECT_LOGGING_", "PREFECT_SERVER_DATABASE_", "PREFECT_SERVER_LOGGING_")


def client_environment(home: Home) -> dict[str, str]:
    """What every process of ours needs in its environment to reach the server of this home.

    Returns:
        variables to set on top of the inherited ones; the API password is among them, so they
        are for child processes of the same user only, never for a host, a log or a parameter.

    Raises:
        HostUnreachable: no server was started for this home.
    """
    record = read_json_or_none(server_record(home))
    if record is None:
        raise HostUnreachable(
            "no Prefect server for this home", str(home.root), hint="start it with `charter up`"
        )
    return environment_for(home, int(record["port"]))


def connect(home: Home) -> None:
    """Point this very process at the server of this home, before it imports Prefect.

    Raises:
        HostUnreachable: no server was started for this home.
        RuntimeError: Prefect is already imported, with whatever settings stood there before.
    """
    wanted = client_environment(home)
    held = {name: os.environ.get(name) for name in wanted}
    if held == wanted:
        return
    if "prefect" in sys.modules:
        raise RuntimeError("connect() has to come before the first import of prefect")
    os.environ.update(wanted)
    for name in foreign_settings(os.environ):
        if name not in wanted:
            del os.environ[name]


def environment_for(home: Home, port: int) -> dict[str, str]:
    """`client_environment` for a server on that port, which need not run yet."""
    return {
        "CHARTER_HOME": str(home.root),
        "PREFECT_HOME": str(home.server / "prefect"),
        "PREFECT_API_URL": api_url(port),
        "PREFECT_API_AUTH_STRING": api_password(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": str(POLL_SECONDS),
        "PREFECT_RUNNER_POLL_FREQUENCY": str(POLL_SECONDS),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "MPLCONFIGDIR": str(home.cache / "matplotlib"),
        **_past_the_proxy(os.environ),
    }


def process_environment(home: Home, port: int) -> dict[str, str]:
    """The whole environment of a process we start: inherited, less foreign Prefect settings."""
    inherited = dict(os.environ)
    for name in foreign_settings(inherited):
        del inherited[name]
    return {**inherited, **environment_for(home, port)}


def foreign_settings(environment: Mapping[str, str]) -> list[str]:
    """Prefect's variables that would pull a process towards another server or profile."""
    return [
        name
        for name in environment
        if name.startswith("PREFECT_") and not name.startswith(FROM_OUTSIDE)
    ]


def api_url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}/api"


def server_record(home: Home) -> Path:
    """Where `up` notes the server it started."""
    return home.server / "server.json"


def password_file(home: Home) -> Path:
    """`user:password` of the API and the dashboard, mode 0600."""
    return home.server / "api-password"


def api_password(home: Home) -> str:
    """`user:password` of this home's API, made at the first call."""
    path = password_file(home)
    if not path.exists():
        home.server.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, f"charter:{secrets.token_urlsafe(24)}\n".encode(), 0o600)
    return path.read_text(encoding="utf-8").strip()


def _past_the_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """A company's HTTP proxy must not be asked for addresses of this machine."""
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = [host for host in known.split(",") if host]
    names = ",".join([*hosts, *(name for name in (LOOPBACK, "localhost") if name not in hosts)])
    return {"NO_PROXY": names, "no_proxy": names}
