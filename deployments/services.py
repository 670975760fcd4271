"""Programs that go on after the command which started them, each with a record of its own.

A record names the process by pid, start time and boot, so that a reused pid, a reboot or a
leftover file never makes us signal something that is not ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.clock import Clock, iso
from experiment.paths import Home
from remote.agent import process
from remote.agent.files import read_json_or_none, write_json

SERVICE_TAG = "CHARTER_SERVICE"
FLOW_TAG = "PREFECT__FLOW_RUN_ID"  # set by Prefect's runner on every flow process
LOG_LIMIT_BYTES = 8 << 20
POLL_SECONDS = 0.1

# Children of this very process stay referenced: their exit is collected by `_collect`.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Service:
    """One program as its record describes it.

    Attributes:
        name: server, experiments or reapers.
        identity: pid, start time, boot id.
        details: what the starter wants to remember (port, fingerprint).
    """

    name: str
    identity: Mapping[str, Any]
    log: Path
    details: Mapping[str, Any]

    @property
    def pid(self) -> int:
        return int(self.identity["pid"])

    @property
    def alive(self) -> bool:
        _collect()
        return process.alive(self.identity)


def start(
    home: Home,
    name: str,
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    details: Mapping[str, Any],
    clock: Clock,
) -> Service:
    """Start a program in a session of its own and note it in `home.server/NAME.json`.

    Its output goes to `home.logs/NAME.log`; the previous log is kept as `NAME.log.1` once large.

    Raises:
        OSError: the program or its folder is missing.
    """
    log = home.logs / f"{name}.log"
    home.logs.mkdir(parents=True, exist_ok=True)
    _rotate(log)
    with log.open("ab") as output:
        child = subprocess.Popen(  # it is to outlive us, and to be collected by `_collect`
            list(argv),
            cwd=cwd,
            env={**environment, SERVICE_TAG: name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children.append(child)
    identity = process.identify(child.pid) or {"pid": child.pid, "start": -1, "boot_id": ""}
    record = {
        "name": name,
        "identity": identity,
        "argv": list(argv),
        "log": str(log),
        "started_at": iso(clock.now()),
        **details,
    }
    write_json(record_file(home, name), record, 0o600)
    return _service(record)


def recorded(home: Home, name: str) -> Service | None:
    """The service that the record tells of; None when there is no (readable) record."""
    record = read_json_or_none(record_file(home, name))
    return _service(record) if isinstance(record, dict) and "identity" in record else None


def strays(home: Home, name: str) -> list[Mapping[str, Any]]:
    """Living processes of this service that no record tells of: `up` died before writing it."""
    known = recorded(home, name)
    tags = {SERVICE_TAG: name, "CHARTER_HOME": str(home.root)}
    return [
        process.identity_of(row)
        for row in process.tagged(tags)
        if not _belongs_elsewhere(row.pid) and (known is None or row.pid != known.pid)
    ]


def flow_processes(home: Home) -> list[Mapping[str, Any]]:
    """Living flow runs of this home, also those whose runner was killed.

    What a flow started on a host carries `CHARTER_ROLE=host` and is not among them.
    """
    tags: dict[str, str | None] = {
        SERVICE_TAG: None,
        FLOW_TAG: None,
        "CHARTER_HOME": str(home.root),
    }
    return [
        process.identity_of(row)
        for row in process.tagged(tags)
        if process.environment(row.pid).get("CHARTER_ROLE") != "host"
    ]


def stop(identities: Iterable[Mapping[str, Any]], *, grace_seconds: float, clock: Clock) -> bool:
    """TERM these very processes, wait, and KILL the ones that outlast the grace.

    Returns:
        whether one had to be killed.
    """
    waiting = [identity for identity in identities if process.send(identity, signal.SIGTERM)]
    late = _still_there(waiting, clock.monotonic() + grace_seconds, clock)
    for identity in late:
        process.send(identity, signal.SIGKILL)
    _still_there(late, clock.monotonic() + grace_seconds, clock)
    return bool(late)


def forget(home: Home, name: str) -> None:
    """Remove the record of a service that has ended."""
    record_file(home, name).unlink(missing_ok=True)


def record_file(home: Home, name: str) -> Path:
    return home.server / f"{name}.json"


def tail(log: Path, lines: int = 12) -> tuple[str, ...]:
    """The last lines of a log, for an error that has to show why a program ended."""
    if not log.exists():
        return ()
    with log.open("rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - 16384))
        text = handle.read().decode("utf-8", "replace")
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]


def _service(record: Mapping[str, Any]) -> Service:
    return Service(
        name=str(record["name"]),
        identity=record["identity"],
        log=Path(str(record["log"])),
        details=record,
    )


def _still_there(
    identities: list[Mapping[str, Any]], deadline: float, clock: Clock
) -> list[Mapping[str, Any]]:
    while True:
        _collect()
        identities = [identity for identity in identities if process.alive(identity)]
        if not identities or clock.monotonic() >= deadline:
            return identities
        clock.sleep(POLL_SECONDS)


def _belongs_elsewhere(pid: int) -> bool:
    held = process.environment(pid)
    return FLOW_TAG in held or held.get("CHARTER_ROLE") == "host"


def _collect() -> None:
    """Take the exit codes of ended children, or they stay zombies as long as we live."""
    _children[:] = [child for child in _children if child.poll() is None]


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
