"""The watchdog's process: looks at the host, asks the rules, and acts.

It must outlast everything else on the host. A full disk, a lock that somebody holds for ever, a
damaged state file: it then goes on from what it remembers, and says so in its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, List, Optional

from remote.agent import clock, watchdog_rules, watchdog_state
from remote.agent.answer import now_utc
from remote.agent.errors import AgentError
from remote.agent.launch_tree import ask_to_stop, host_records, members, signal_members
from remote.agent.layout import Layout, RunRoot
from remote.agent.presence import step_running
from remote.agent.process import alive, facts, identify
from remote.agent.ssh_sessions import interactive
from remote.agent.stop import exit_record, write_unobserved
from remote.agent.watchdog_rules import Action, Seen, State

STOP_COMMAND_SECONDS = 120.0
OUTPUT_CHARACTERS = 2000
POLL_SECONDS = 5.0
NUMBERS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


class Guard:
    """One data root's watchdog: `known` is the newest state, `on_disk` the last one seen there."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.known: Optional[State] = None
        self.on_disk: Optional[State] = None
        self.seen = Seen()

    def watch(self) -> None:
        """Look again and again, until the data root and its stop command are gone."""
        wakeups = _listen()
        while True:
            try:
                if not self.tick():
                    return
            except Exception:  # noqa: BLE001 - whatever it is, an unguarded host costs more
                _say(traceback.format_exc())
            select.select([wakeups], [], [], self._pause())
            _drain(wakeups)

    def tick(self) -> bool:
        """One look and what follows from it; False when there is nothing left to guard."""
        if not self.layout.watchdog.exists():
            return self._without_root()
        seen = self._look()
        begin = self.known
        try:
            with watchdog_state.changing(self.layout) as memory:
                if memory.state is None:
                    return True
                other = memory.state["process"]
                if other != identify(os.getpid()) and alive(other):
                    # The data root was wiped and armed anew, our lock with it: one is enough.
                    return False
                # What could not be written last time is newer than what is there, unless a step
                # has changed the file since.
                begin = self.known if memory.state == self.on_disk else memory.state
                self.on_disk = memory.state
                memory.state, actions = self._decide(begin or memory.state, seen)
                state = memory.state
            self.on_disk = state
        except (OSError, AgentError) as error:
            _say(f"guarding from memory: {error}")
            if begin is None:
                return True
            state, actions = self._decide(begin, seen)
        self.known = state
        for action in actions:
            self._act(action, state)
        return True

    def _without_root(self) -> bool:
        """The data root was removed: a released local host takes its stop command along, and there
        is nothing to guard. A rented one still bills, and is stopped from memory."""
        if self.known is None or not stop_is_there(self.known["stop_argv"]):
            return False
        self.known, actions = self._decide(self.known, self._look())
        for action in actions:
            self._act(action, self.known)
        return True

    def _look(self) -> Seen:
        """What goes on at the host now; what was seen last when it can't be seen now."""
        sessions = (self.known or {}).get("sessions", "any")
        try:
            records = [record for record in host_records(self.layout) if members(record)]
            self.seen = Seen(
                tuple(record["request_id"] for record in records),
                step_running(self.layout),
                interactive(self.layout, sessions),
            )
        except OSError as error:
            # Deadlines hold all the same; a trainer that was there is not taken for gone.
            _say(f"looking failed: {error}")
        return self.seen

    def _decide(self, state: State, seen: Seen) -> tuple[State, List[Action]]:
        after, actions = watchdog_rules.decide(state, seen, watchdog_state.present())
        me = identify(os.getpid())
        if after["acknowledged"] != after["armed"] or after["process"] != me:
            after["process"] = me
            after["self_check"] = self_check(after)
            after["acknowledged"] = after["armed"]
        return after, actions

    def _act(self, action: Action, state: State) -> None:
        """One action that fails must not keep the others from being done."""
        try:
            if action.kind == "stop":
                self._stop_host(action.about, state)
            else:
                self._signal(action.about, NUMBERS[action.kind])
        except (OSError, AgentError) as error:
            _say(f"{action.kind} {action.about}: {error}")

    def _signal(self, launch: str, number: signal.Signals) -> None:
        for record in host_records(self.layout):
            if record["request_id"] != launch:
                continue
            run = RunRoot(Path(record["run_root"]))
            watched = alive(record.get("supervisor"))
            ask_to_stop(run, record, "watchdog", number)
            reached = signal_members(record, number)
            _say(f"{number.name} to {launch}: {[item['pid'] for item in reached]}")
            if number == signal.SIGKILL and not watched and exit_record(run, record) is None:
                write_unobserved(run, record)

    def _stop_host(self, reason: str, state: State) -> None:
        argv = state["stop_argv"]
        if not argv:
            last: Dict[str, Any] = {"problem": "stop_unavailable"}
            _say(f"STOP UNAVAILABLE: {reason}: this host has no stop command and goes on billing")
        else:
            last = run_stop(argv, reason)
            _say(f"stop ({reason}) attempt {state['stopping']['attempts']}: {last}")
        last["at_utc"] = now_utc()
        if not self.layout.watchdog.exists():
            return
        with watchdog_state.changing(self.layout) as memory:
            if memory.state is not None and memory.state["stopping"] is not None:
                memory.state["stopping"]["last"] = last

    def _pause(self) -> float:
        """Until the next look, or the next deadline when that is sooner."""
        if self.known is None:
            return POLL_SECONDS
        now = clock.boot_seconds()
        waits = [float(self.known[name]) - now for name in ("train_until", "stop_at")]
        ahead = [wait for wait in waits if wait > 0]
        return max(0.05, min([float(self.known["poll_seconds"]), *ahead]))


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


def stop_is_there(argv: List[str]) -> bool:
    """Whether the stop command exists, program and files that it is given alike."""
    if not argv or shutil.which(argv[0]) is None:
        return False
    return all(os.path.exists(part) for part in argv if os.path.isabs(part))


def run_stop(argv: List[str], reason: str) -> Dict[str, Any]:
    """Run the provider's command once: `{exit_code, output}`, or `{problem}`."""
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


def only_one(layout: Layout) -> bool:
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


def _check(name: str, status: str, found: str, expected: str, fix: str) -> Dict[str, str]:
    return {"name": name, "status": status, "found": found, "expected": expected, "fix": fix}


def _say(text: str) -> None:
    # The log may lie on the full disk that is being complained of.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{now_utc()} {text}\n")
        sys.stderr.flush()
