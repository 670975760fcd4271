"""What runs on a local instance, and ending it like a power cut: only what belongs to it.

A process belongs to an instance when its environment names it, or when it descends from the
instance's sshd. sshd's own processes overwrite their environment with a title, so they are known
by descent, or by the connection that they hold on the instance's port.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psutil

from remote.agent.process import alive

ROUNDS = 20
ROUND_SECONDS = 0.5


def end_everything(record: dict[str, Any], meter: dict[str, Any]) -> int:
    """SIGKILL every process of the instance until none is left; returns how many there were.

    Args:
        record, meter: the instance's records (see `local_folder`).

    Raises:
        RuntimeError: some outlive SIGKILL (stuck in the kernel); named by pid.
    """
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = processes_of(record, meter)
        if not found:
            return len(ended)
        for process in found:
            ended.add(process.pid)
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        _wait_until_dead(found)
    raise RuntimeError(f"processes outlive SIGKILL: {[process.pid for process in found]}")


def processes_of(record: dict[str, Any], meter: dict[str, Any]) -> list[psutil.Process]:
    """Every living process of the instance, sshd first; never the caller, never its meter."""
    found: dict[int, psutil.Process] = {}
    sshd = meter.get("sshd")
    if sshd and alive(sshd):
        _add_tree(found, sshd["pid"])
    _add_connected(found, meter.get("port"))
    for process in psutil.process_iter():
        if process.pid not in found and _tagged(process, record):
            found[process.pid] = process
    found.pop(os.getpid(), None)
    return [process for process in found.values() if not _is_meter(process, meter)]


def _wait_until_dead(processes: list[psutil.Process]) -> None:
    """A zombie is dead: nobody may be there to reap what was adopted by a container's init."""
    end = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < end and any(map(_runs, processes)):
        time.sleep(0.005)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _add_tree(found: dict[int, psutil.Process], pid: int) -> None:
    try:
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            if _runs(process):
                found[process.pid] = process
    except psutil.NoSuchProcess:
        return


def _add_connected(found: dict[int, psutil.Process], port: int | None) -> None:
    """Login processes whose listener is gone already."""
    if not port:
        return
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, PermissionError):
        return  # macOS tells only root; descent and environment still do
    for connection in connections:
        if not connection.pid or not connection.laddr or connection.laddr.port != port:
            continue
        try:
            if psutil.Process(connection.pid).name().startswith("sshd"):
                _add_tree(found, connection.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _tagged(process: psutil.Process, record: dict[str, Any]) -> bool:
    try:
        env = process.environ()
    except (psutil.Error, OSError):
        return False  # another user's, a zombie, or gone
    if env.get("CHARTER_INSTANCE") != record["name"]:
        return False
    # Another CHARTER_HOME may have an instance of the same name.
    token = env.get("CHARTER_INSTANCE_TOKEN")
    if token:
        return bool(token == record["token"])
    return bool(env.get("HOME") == record["env"]["HOME"])


def _is_meter(process: psutil.Process, meter: dict[str, Any]) -> bool:
    known = meter.get("meter")
    return known is not None and process.pid == known["pid"] and alive(known)
