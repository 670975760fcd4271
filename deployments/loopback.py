"""Ports of this machine: which are free, and whether this home's server answers on one."""

from __future__ import annotations

import base64
import contextlib
import socket
import urllib.error
import urllib.request

from deployments.environment import LOOPBACK, api_password, api_url
from experiment.paths import Home

ANSWER_SECONDS = 3.0


def answers(home: Home, port: int) -> bool:
    """Whether our server is healthy there and takes our password (another's would not)."""
    health = urllib.request.Request(f"{api_url(port)}/health")
    version = urllib.request.Request(f"{api_url(port)}/admin/version")
    token = base64.b64encode(api_password(home).encode()).decode("ascii")
    version.add_header("Authorization", f"Basic {token}")
    return _is_ok(health) and _is_ok(version)


def free_port(wanted: int) -> int:
    """The wanted port if nobody listens there, else one that the system picks."""
    for port in filter(None, (wanted,)):
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _is_ok(request: urllib.request.Request) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return int(probe.getsockname()[1])
