"""The pool: one host object, hence one connection, for each endpoint in a process."""

from __future__ import annotations

import dataclasses
import os
import threading

from experiment.hosts.base import Endpoint, Host
from experiment.hosts.local import LocalHost
from experiment.hosts.ssh import SshHost
from experiment.paths import Home

_lock = threading.Lock()
# By process too: a connection must not be shared across a fork.
_pool: dict[tuple[int, Endpoint], Host] = {}


def connect(endpoint: Endpoint, home: Home) -> Host:
    """The host at the endpoint. Nothing is opened before its first call.

    An endpoint that brings no host key is held to the one pinned in
    `CHARTER_HOME/known_hosts/HOST_PORT`; without either the first call raises GuardRefused.
    """
    if endpoint.kind == "ssh" and not endpoint.host_key:
        endpoint = dataclasses.replace(endpoint, host_key=_pinned(endpoint, home))
    with _lock:
        key = (os.getpid(), endpoint)
        if key not in _pool:
            _pool[key] = _host(endpoint)
        return _pool[key]


def close_all() -> None:
    """Close every pooled connection of this process; each opens again on its next call."""
    with _lock:
        hosts = [host for (pid, _), host in _pool.items() if pid == os.getpid()]
        _pool.clear()
    for host in hosts:
        host.close()


def _host(endpoint: Endpoint) -> Host:
    if endpoint.kind == "local":
        return LocalHost(dict(endpoint.env), endpoint.root)
    return SshHost(endpoint)


def _pinned(endpoint: Endpoint, home: Home) -> str | None:
    path = home.known_hosts / f"{endpoint.host}_{endpoint.port}"
    if not path.exists():
        return None
    # The file is in OpenSSH's form, `[host]:port KIND KEY`, so that `ssh` can use it too.
    words = path.read_text(encoding="utf-8").split()
    return " ".join(words[1:3]) if len(words) >= 3 else None
