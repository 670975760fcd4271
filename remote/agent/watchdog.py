"""The watchdog: stops the meter when nobody else does. Steps `arm` and `contact`, and the process.

One process a data root (`guard.py`), detached, with the rules of `watchdog_rules` and the memory of
`watchdog_state`. The steps change the memory; the process looks every `poll_seconds`, or at once
when it gets SIGUSR1. Arming while it lives changes what it guards and starts no second one.

`agent.pyz watchdog DATA_ROOT` ends with 0 when another one guards the data root already, or when
the data root and its stop command are gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping

from remote.agent import watchdog_rules, watchdog_state
from remote.agent.errors import AgentError, usage
from remote.agent.guard import Guard, only_one
from remote.agent.layout import Layout
from remote.agent.pack import self_argv
from remote.agent.process import DATA_ROOT_TAG, LAUNCH_TAG, alive, send
from remote.agent.ssh_sessions import default_scope
from remote.agent.watchdog_rules import State

ACKNOWLEDGE_SECONDS = 30.0


def arm(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Guard the host, and wait until the process itself says that it does.

    Request `watchdog`: see `watchdog_rules.arm`. Evidence `{armed, watchdog: {pid, start,
    boot_id}, deadlines: {train_until_seconds, stop_at_seconds}, later_refused, stop_argv,
    self_check: {ok, checks}}`.

    Raises:
        AgentError: usage for a wrong field; remote_step_failed when the process does not answer,
            or can't do what it is there for.
    """
    asked = request.get("watchdog")
    if not isinstance(asked, dict):
        raise usage(f"request.watchdog: expected an object, found {type(asked).__name__}")
    with watchdog_state.changing(layout) as memory:
        memory.state, refused = watchdog_rules.arm(
            memory.state, {"sessions": default_scope(), **asked}, watchdog_state.present()
        )
        number = int(memory.state["armed"])
    state = _acknowledged(layout, number)
    check = state["self_check"]
    if not check["ok"]:
        bad = next(item for item in check["checks"] if item["status"] == "FAIL")
        raise AgentError(
            "remote_step_failed",
            f"watchdog is not armed: {bad['name']}: expected {bad['expected']}, "
            f"found {bad['found']}",
            str(bad["fix"]),
        )
    found = watchdog_rules.view(state, watchdog_state.present())
    return {
        "armed": True,
        "watchdog": state["process"],
        "deadlines": _deadlines(found),
        "later_refused": refused,
        "stop_argv": state["stop_argv"],
        "self_check": check,
    }


def contact(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """A sign of life: renews idle and collect grace; a watchdog that died is started again.

    Request: see `watchdog_rules.contact`. Evidence `{deadlines: {…}, later_refused,
    idle_left_seconds, collect_left_seconds, lease, stopping, stop_available, watchdog_alive,
    revived}`.

    Raises:
        AgentError: not_found (exit 1) when the host was never armed; usage for a wrong field.
    """
    with watchdog_state.changing(layout) as memory:
        if memory.state is None:
            raise AgentError(
                "not_found",
                f"no watchdog guards data root {str(layout.data_root)!r}",
                "arm it first",
            )
        memory.state, refused = watchdog_rules.contact(
            memory.state, request, watchdog_state.present()
        )
        state = memory.state
    revived = not alive(state["process"])
    if revived:
        _spawn(layout)
    else:
        send(state["process"], signal.SIGUSR1)
    found = watchdog_rules.view(state, watchdog_state.present())
    rest = {name: value for name, value in found.items() if not name.endswith("_until_seconds")}
    rest.pop("stop_at_seconds")
    return dict(
        rest,
        deadlines=_deadlines(found),
        later_refused=refused,
        watchdog_alive=not revived,
        revived=revived,
    )


def main(arguments: List[str]) -> int:
    """The process. Returns 0 when there is nothing (left) for it to guard, 64 for bad arguments."""
    if len(arguments) != 1:
        sys.stderr.write("error: usage: agent.pyz watchdog DATA_ROOT\n")
        return 64
    layout = Layout(Path(arguments[0]))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if only_one(layout):
        Guard(layout).watch()
    return 0


def _acknowledged(layout: Layout, number: int) -> State:
    """Wait until the living process has taken up this arming; starts one when there is none."""
    give_up_at = time.monotonic() + ACKNOWLEDGE_SECONDS
    spawned = False
    while time.monotonic() < give_up_at:
        state = watchdog_state.read(layout)
        if state is not None and alive(state["process"]):
            if state["acknowledged"] >= number:
                return state
            send(state["process"], signal.SIGUSR1)
        elif not spawned:
            _spawn(layout)
            spawned = True
        time.sleep(0.05)
    raise AgentError(
        "remote_step_failed",
        f"watchdog is not armed: no answer from it within {ACKNOWLEDGE_SECONDS:g} s",
        f"read {str(_log(layout))!r} on the host",
    )


def _spawn(layout: Layout) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SSH_") and name != LAUNCH_TAG
    }
    environment["CHARTER_ROLE"] = "host"
    environment[DATA_ROOT_TAG] = os.path.realpath(str(layout.data_root))
    with open(_log(layout), "ab") as log:
        process = subprocess.Popen(
            [*self_argv(layout), "watchdog", str(layout.data_root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    # It outlives us on purpose; told so, Popen does not warn that nobody waits for it.
    process.returncode = 0


def _deadlines(view: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: view[name] for name in ("train_until_seconds", "stop_at_seconds")}


def _log(layout: Layout) -> Path:
    return layout.charter / "watchdog.log"
