"""The watchdog: stops the meter when nobody else does. Steps `arm` and `contact`, and the process.

One process a data root, detached, with the rules of `watchdog_rules` and the memory of
`watchdog_state`. The steps change the memory; the process looks every `poll_seconds`, or at once
when it gets SIGUSR1. Arming while it lives changes what it guards and starts no second one.

`agent.pyz watchdog DATA_ROOT` ends with 0 when another one guards the data root already, or when
the data root is gone.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from remote.agent import clock, watchdog_rules, watchdog_state
from remote.agent.answer import now_utc
from remote.agent.errors import AgentError, usage
from remote.agent.launch_tree import ask_to_stop, host_records, members, signal_members
from remote.agent.layout import Layout, RunRoot
from remote.agent.pack import self_argv
from remote.agent.presence import step_running
from remote.agent.process import DATA_ROOT_TAG, LAUNCH_TAG, alive, facts, identify, send
from remote.agent.ssh_sessions import interactive
from remote.agent.stop import exit_record, write_unobserved
from remote.agent.watchdog_rules import Action, Seen, State

ACKNOWLEDGE_SECONDS = 30.0
STOP_COMMAND_SECONDS = 120.0
OUTPUT_CHARACTERS = 2000
NUMBERS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


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
        memory.state, refused = watchdog_rules.arm(memory.state, asked, watchdog_state.present())
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
    if not _only_one(layout):
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wakeups = _listen()
    while True:
        state = tick(layout)
        if state is None:
            return 0
        select.select([wakeups], [], [], _pause(state))
        _drain(wakeups)


def tick(layout: Layout) -> Optional[State]:
    """One look and what follows from it; the state after it, None when the data root is gone."""
    if not layout.watchdog.exists():
        return None
    known = watchdog_state.read(layout)
    seen = look(layout, known["sessions"]) if known else Seen()
    with watchdog_state.changing(layout) as memory:
        if memory.state is None:
            return None
        now = watchdog_state.present()
        memory.state, actions = watchdog_rules.decide(memory.state, seen, now)
        if memory.state["acknowledged"] != memory.state["armed"] or not _is_self(memory.state):
            memory.state["process"] = identify(os.getpid())
            memory.state["self_check"] = self_check(memory.state)
            memory.state["acknowledged"] = memory.state["armed"]
        state = memory.state
    # Outside the lock: a stop command may take its time.
    for action in actions:
        _act(action, state, layout)
    return state


def look(layout: Layout, sessions: str) -> Seen:
    """What goes on at the host now."""
    living = [record["request_id"] for record in host_records(layout) if members(record)]
    return Seen(tuple(living), step_running(layout), interactive(layout, sessions))


def self_check(state: State) -> Dict[str, Any]:
    """Whether the process can do its work: `{ok, checks: [{name, status, found, expected, fix}]}`.

    A host without a stop command is a SKIP: it is guarded as far as possible, and says so.
    """
    argv = state["stop_argv"]
    program = shutil.which(argv[0]) if argv else None
    row = facts(os.getpid())
    view = watchdog_rules.view(state, watchdog_state.present())
    stop = "SKIP" if not argv else "PASS" if program else "FAIL"
    ordered = view["train_until_seconds"] <= view["stop_at_seconds"]
    checks = [
        _check(
            "stop_command",
            stop,
            program or (argv[0] if argv else "none: this host can't stop itself"),
            "an executable",
            "give the provider's stop command",
        ),
        _check("process_table", "PASS" if row else "FAIL", str(bool(row)), "True", "mount /proc"),
        _check(
            "deadlines",
            "PASS" if ordered else "FAIL",
            f"train {view['train_until_seconds']:g} s, stop {view['stop_at_seconds']:g} s",
            "train until before stop at",
            "ask for deadlines in order",
        ),
        _check("clock", "PASS", clock.NAME, "boottime or monotonic", ""),
    ]
    return {"ok": all(item["status"] != "FAIL" for item in checks), "checks": checks}


def _act(action: Action, state: State, layout: Layout) -> None:
    if action.kind == "stop":
        _stop_host(action.about, state, layout)
        return
    number = NUMBERS[action.kind]
    for record in host_records(layout):
        if record["request_id"] != action.about:
            continue
        run = RunRoot(Path(record["run_root"]))
        watched = alive(record.get("supervisor"))
        ask_to_stop(run, record, "watchdog", number)
        reached = signal_members(record, number)
        _say(f"{number.name} to {record['request_id']}: {[item['pid'] for item in reached]}")
        if number == signal.SIGKILL and not watched and exit_record(run, record) is None:
            write_unobserved(run, record)


def _stop_host(reason: str, state: State, layout: Layout) -> None:
    argv = state["stop_argv"]
    if not argv:
        last: Dict[str, Any] = {"problem": "stop_unavailable"}
        _say(f"STOP UNAVAILABLE: {reason}: this host has no stop command and goes on billing")
    else:
        last = _run_stop(argv, reason)
        _say(f"stop ({reason}) attempt {state['stopping']['attempts']}: {last}")
    last["at_utc"] = now_utc()
    with watchdog_state.changing(layout) as memory:
        if memory.state is not None and memory.state["stopping"] is not None:
            memory.state["stopping"]["last"] = last


def _run_stop(argv: List[str], reason: str) -> Dict[str, Any]:
    environment = dict(os.environ, CHARTER_STOP_REASON=reason)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=STOP_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": str(error)}
    text = done.stdout.decode("utf-8", "replace")[-OUTPUT_CHARACTERS:]
    return {"exit_code": done.returncode, "output": text}


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


def _only_one(layout: Layout) -> bool:
    """Take the lock for good; the kernel gives it back when this process ends."""
    path = layout.lock("watchdog")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _listen() -> int:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    return reading


def _drain(wakeups: int) -> None:
    try:
        os.read(wakeups, 4096)
    except BlockingIOError:
        return


def _pause(state: State) -> float:
    """Until the next look, or the next deadline when that is sooner."""
    now = clock.boot_seconds()
    waits = [float(state["poll_seconds"])]
    waits += [float(state[name]) - now for name in ("train_until", "stop_at") if state[name] > now]
    return max(0.05, min(waits))


def _is_self(state: State) -> bool:
    return bool(state["process"]) and state["process"] == identify(os.getpid())


def _deadlines(view: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: view[name] for name in ("train_until_seconds", "stop_at_seconds")}


def _check(name: str, status: str, found: str, expected: str, fix: str) -> Dict[str, str]:
    return {"name": name, "status": status, "found": found, "expected": expected, "fix": fix}


def _log(layout: Layout) -> Path:
    return layout.charter / "watchdog.log"


def _say(text: str) -> None:
    sys.stderr.write(f"{now_utc()} {text}\n")
    sys.stderr.flush()
