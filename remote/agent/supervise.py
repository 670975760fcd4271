"""Program `supervise`: the trainer's parent, in a session of its own.

`agent.pyz supervise` reads one JSON object from stdin (so that secrets touch no disk):
`{argv, cwd, environment, run_root, latest_run, latest_pid, record, lock_descriptor,
heartbeat_seconds, sample_seconds, history_lines}`, starts the trainer, writes `launch.json`, prints
the same record on stdout and closes it. Then it stays until the trainer ends and writes
`process-exit.json`: the true exit code, 128+n for death by signal n.

The trainer is forked but held back until `launch.json` is on disk. So a trainer that runs is
always a recorded one, and a supervisor that dies before has started nothing.

SIGTERM and SIGINT are passed on to the trainer's group; SIGHUP is ignored. Exit code 0 when the
exit record was written, 126 when the trainer could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from remote.agent import resources
from remote.agent.answer import now_utc
from remote.agent.clock import boot_seconds
from remote.agent.files import write_atomic, write_json
from remote.agent.history import History
from remote.agent.launch_tree import asked_to_stop, members
from remote.agent.layout import RunRoot
from remote.agent.process import Identity, identify, send

EXIT_USAGE = 64
EXIT_NOT_STARTED = 126
EXIT_NO_PROGRAM = 127

WRITE_PATIENCE_SECONDS = 3600.0
WRITE_AGAIN_SECONDS = 2.0
PR_SET_CHILD_SUBREAPER = 36
FORWARDED = (signal.SIGTERM, signal.SIGINT)


def main(arguments: List[str]) -> int:
    """Start the trainer described on stdin and stay with it; returns the exit code."""
    if arguments:
        sys.stderr.write(f"error: supervise: expected no arguments, found {arguments!r}\n")
        return EXIT_USAGE
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spec = _read_spec()
    if spec is None:
        return EXIT_NOT_STARTED
    run = RunRoot(Path(spec["run_root"]))
    wakeups = _listen()
    supervisor = identify(os.getpid())
    started = time.monotonic()
    kills_before = resources.cgroup()["oom_kills"]
    _adopt_orphans()
    held = _fork_held(spec, run)
    record = _record_launch(spec, run, held, supervisor)
    problem = held.release()
    os.close(spec["lock_descriptor"])
    if not problem:
        _report(record)
    sampling = threading.Lock()
    watch = threading.Thread(target=_watch_resources, args=(spec, run, sampling), daemon=True)
    watch.start()
    status = _stay(held.identity, spec, run, wakeups, sampling)
    ended = _exit_record(status, problem, record, time.monotonic() - started)
    ended["oom_kills"] = _difference(resources.cgroup()["oom_kills"], kills_before)
    ended["stop"] = asked_to_stop(run, record)
    write_patiently(run.exit_record, ended)
    if problem:
        _report(record)
    _beat(spec, run, held.identity, "ended")
    return 0


def write_patiently(path: Path, value: Mapping[str, Any]) -> None:
    """Write the one file that must not be lost. A full disk is what many trainers die of, and
    somebody will make room.

    Raises:
        OSError: it could not be written for an hour.
    """
    give_up_at = time.monotonic() + WRITE_PATIENCE_SECONDS
    while True:
        try:
            write_json(path, value)
            return
        except OSError as error:
            sys.stderr.write(f"{now_utc()} {path.name} not written: {error}\n")
            if time.monotonic() >= give_up_at:
                raise
        time.sleep(WRITE_AGAIN_SECONDS)


def _adopt_orphans() -> None:
    """What the trainer leaves behind becomes our child, so that it can be found and reaped.

    Linux only; elsewhere the environment tags have to do.
    """
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        sys.stderr.write(f"{now_utc()} orphans are found by their tags only\n")


class Held:
    """A forked child that waits for leave to become the trainer."""

    def __init__(self, identity: Identity, leave: int, failure: int) -> None:
        self.identity = identity
        self._leave = leave
        self._failure = failure

    def release(self) -> Dict[str, Any]:
        """Let it go; `{}` when it became the trainer, else `{errno, message}`."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._leave, b"!")
        os.close(self._leave)
        with os.fdopen(self._failure, "rb") as pipe:
            text = pipe.read().decode("ascii")
        return {"errno": int(text), "message": os.strerror(int(text))} if text else {}


def _fork_held(spec: Mapping[str, Any], run: RunRoot) -> Held:
    log = os.open(str(run.log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    wait, leave = os.pipe()
    failure_out, failure_in = os.pipe()
    child = os.fork()
    if child == 0:
        _become_trainer(spec, log, wait, leave, failure_in)
    for descriptor in (log, wait, failure_in):
        os.close(descriptor)
    identity = identify(child)
    if identity is None:
        raise OSError(errno.ECHILD, "the trainer's process vanished before it was started")
    return Held(identity, leave, failure_out)


def _become_trainer(spec: Mapping[str, Any], log: int, wait: int, leave: int, failure: int) -> None:
    """The child's side: own session, log as output, then exec. Never returns."""
    code = EXIT_NOT_STARTED
    try:
        os.close(leave)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Nothing to read means that the supervisor died: the trainer must not start unrecorded.
        if os.read(wait, 1) == b"!":
            os.chdir(spec["cwd"])
            os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])
    except OSError as error:
        code = EXIT_NO_PROGRAM if error.errno == errno.ENOENT else EXIT_NOT_STARTED
        os.write(failure, str(error.errno).encode("ascii"))
    finally:
        os._exit(code)


def _record_launch(
    spec: Mapping[str, Any], run: RunRoot, held: Held, supervisor: Optional[Identity]
) -> Dict[str, Any]:
    record = dict(spec["record"])
    record.update(held.identity)
    record["supervisor"] = supervisor
    record["started_at"] = now_utc()
    write_json(run.launch, record)
    write_atomic(spec["latest_run"], f"{run.path}\n".encode())
    write_atomic(spec["latest_pid"], f"{record['pid']}\n".encode("ascii"))
    return record


def _stay(
    identity: Identity,
    spec: Mapping[str, Any],
    run: RunRoot,
    wakeups: int,
    sampling: threading.Lock,
) -> int:
    """Wait for the trainer, passing signals on and beating; returns its wait status."""
    beat_at = 0.0
    while True:
        status = _reap(identity["pid"], sampling)
        if status is not None:
            return status
        if time.monotonic() >= beat_at:
            _beat(spec, run, identity, "running")
            beat_at = time.monotonic() + spec["heartbeat_seconds"]
        wait = max(0.0, beat_at - time.monotonic())
        ready, _, _ = select.select([wakeups], [], [], wait)
        if not ready:
            continue
        for number in os.read(wakeups, 512):
            if number in FORWARDED:
                send(identity, signal.Signals(number), group=True)


def _reap(pid: int, sampling: threading.Lock) -> Optional[int]:
    """Collect adopted children that ended; the trainer's wait status once it is among them.

    While the sampler runs a child of its own, only the trainer is asked for: the sampler must
    get that child's status itself.
    """
    if not sampling.acquire(blocking=False):
        done, status = os.waitpid(pid, os.WNOHANG)
        return status if done else None
    try:
        while True:
            done, status = os.waitpid(-1, os.WNOHANG)
            if done == pid:
                return status
            if not done:
                return None
    finally:
        sampling.release()


def _exit_record(
    status: int, problem: Mapping[str, Any], record: Mapping[str, Any], seconds: float
) -> Dict[str, Any]:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = 128 + number if number else os.WEXITSTATUS(status)
    return {
        "schema_version": 1,
        "status": "SUCCEEDED" if code == 0 else "FAILED",
        "exit_code": code,
        "signal": signal_name(number) if number else None,
        "core_dumped": bool(number) and os.WCOREDUMP(status),
        "start_problem": problem.get("message"),
        "finished_at": now_utc(),
        "seconds": round(seconds, 3),
        "pid": record["pid"],
        "start": record["start"],
        "boot_id": record["boot_id"],
        "request_id": record["request_id"],
        "attempt": record["attempt"],
        "observed": True,
        # What the trainer left behind still holds memory and cards; `stop` ends it.
        "left_behind": [row.pid for row in members(record)],
    }


def signal_name(number: int) -> str:
    """`SIGKILL` and so on; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _beat(spec: Mapping[str, Any], run: RunRoot, identity: Identity, state: str) -> None:
    """A disk that is full for a moment must not end the watch over the trainer."""
    beat = {
        "at_utc": now_utc(),
        "boot_seconds": boot_seconds(),
        "boot_id": identity["boot_id"],
        "every_seconds": spec["heartbeat_seconds"],
        "state": state,
        "pid": identity["pid"],
    }
    try:
        write_json(run.heartbeat, beat)
    except OSError as error:
        sys.stderr.write(f"{now_utc()} heartbeat not written: {error}\n")


def _watch_resources(spec: Mapping[str, Any], run: RunRoot, sampling: threading.Lock) -> None:
    history = History(run.resources, int(spec["history_lines"]))
    interval = float(spec["sample_seconds"])
    while True:
        try:
            with sampling:
                reading = resources.sample(str(run.path))
            history.append(dict(reading, at=now_utc()))
        except OSError as error:
            sys.stderr.write(f"{now_utc()} resources not written: {error}\n")
        time.sleep(interval * history.stride)


def _read_spec() -> Optional[Dict[str, Any]]:
    """None when the launcher died before it had said what to start."""
    data = sys.stdin.buffer.read()
    try:
        spec: Dict[str, Any] = json.loads(data.decode("utf-8"))
    except ValueError:
        sys.stderr.write(f"{now_utc()} nothing started: the description is cut off\n")
        return None
    os.set_inheritable(spec["lock_descriptor"], False)
    return spec


def _report(record: Mapping[str, Any]) -> None:
    """Tell the launcher, if it still lives, and let go of its pipes."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps({"record": record}).encode("ascii"))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _listen() -> int:
    """A descriptor that becomes readable when a child ends or a signal is to be passed on."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *FORWARDED):
        signal.signal(number, lambda *_: None)
    return reading


def _difference(after: Optional[float], before: Optional[float]) -> Optional[float]:
    return None if after is None or before is None else after - before
