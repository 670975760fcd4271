"""Step `launch`: start the trainer under a supervisor, once per request id.

`launch.json` in the run root is the proof, and the record that a repeated request finds. A run
root may see several attempts; the records of earlier ones move to `attempts/N/`, the log goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import time
from typing import Any, Dict, Iterator, Mapping, Optional

from remote.agent import resources, watchdog_state
from remote.agent.answer import now_utc
from remote.agent.errors import AgentError, busy, guard_refused, usage
from remote.agent.files import read_json_or_none
from remote.agent.job_environment import checked, job_environment
from remote.agent.launch_tree import latest_record, members
from remote.agent.layout import Layout, RunRoot
from remote.agent.pack import self_argv
from remote.agent.process import DATA_ROOT_TAG, LAUNCH_TAG, alive, tagged
from remote.agent.stop import exit_record

START_TIMEOUT_SECONDS = 60.0
LOCK_WAIT_SECONDS = 90.0
HEARTBEAT_SECONDS = 5.0
SAMPLE_SECONDS = 15.0
HISTORY_LINES = 4000
GRACE_SECONDS = 20.0
# Shorter values ("1", "true") stand in any command line by chance.
SHORTEST_SECRET = 8

# What belongs to one attempt and must not be taken for the next one's.
PER_ATTEMPT = ("launch.json", "process-exit.json", "heartbeat.json", "stop-request.json")
EVIDENCE = (
    "request_id",
    "pid",
    "start",
    "boot_id",
    "supervisor",
    "argv",
    "log",
    "run_root",
    "started_at",
    "log_offset",
    "log_bytes",
    "payload_sha256",
)


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Start the trainer and say which process it is.

    Request: `argv`, `cwd`, `env`, `run_root`, `python`, `model_path`, `runtime_quantization`,
    `artifacts`, `payload_sha256`, `secrets` (names and values; they reach the trainer's
    environment and no file), `grace_seconds` (how long to wait for the trainer's first output),
    optional `heartbeat_seconds`, `sample_seconds`.

    Evidence: `{request_id, pid, start, boot_id, supervisor: {pid, start, boot_id}, argv, log,
    run_root, started_at, log_offset, log_bytes, payload_sha256, log_grown, exit_record,
    gpu_processes}`. `log_bytes` is the log's size with our own header: only growth beyond it
    shows that the trainer writes. A trainer that has ended within the grace has an `exit_record`
    here; that is no error of the launch.

    Raises:
        AgentError: busy while a process of this job lives; guard_refused when the paid training
            time is over; not_found for a missing project folder (exit 3); remote_step_failed when
            the program can't be started (127 when there is none).
    """
    _check(request)
    root = layout.run_root(request.get("run_root"))
    root.path.mkdir(parents=True, exist_ok=True)
    with _lock(layout) as lock:
        known = recorded(root, request["request_id"])
        if known is None:
            _refuse_second(layout, root)
            watchdog_state.refuse_when_over(layout)
            _set_aside(root)
            known = _start(request, layout, root, lock)
            watchdog_state.note_launch(layout)
    grace = request.get("grace_seconds")
    ended = _await_proof(root, known, GRACE_SECONDS if grace is None else float(grace))
    _refuse_unstarted(known, ended)
    evidence = {name: known.get(name) for name in EVIDENCE}
    evidence["log_grown"] = _log_grown(root, known)
    evidence["exit_record"] = ended
    evidence["gpu_processes"] = resources.gpu_processes()
    return evidence


def _await_proof(
    root: RunRoot, record: Mapping[str, Any], seconds: float
) -> Optional[Dict[str, Any]]:
    """Wait until the trainer has written something, has ended, or the grace is over; its exit
    record when it has ended."""
    give_up_at = time.monotonic() + seconds
    while alive(record) and not _log_grown(root, record) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return exit_record(root, record)


def _log_grown(root: RunRoot, record: Mapping[str, Any]) -> bool:
    """Our own header is no growth."""
    return root.log.exists() and root.log.stat().st_size > int(record["log_bytes"])


def _refuse_unstarted(record: Mapping[str, Any], ended: Optional[Mapping[str, Any]]) -> None:
    """The supervisor got the trainer's process but the program could not be started in it."""
    if ended and ended.get("start_problem"):
        raise AgentError(
            "remote_step_failed",
            f"trainer did not start: {record['argv'][0]!r}: {ended['start_problem']}",
            "check the entry command and the job's Python",
            int(ended["exit_code"]),
        )


def recorded(root: RunRoot, request_id: str) -> Optional[Dict[str, Any]]:
    """The launch record of a request id, from this attempt or an earlier one; else None."""
    earlier = sorted((root.path / "attempts").glob("*/launch.json"))
    for path in [root.launch, *earlier]:
        found = read_json_or_none(path)
        if isinstance(found, dict) and found.get("request_id") == request_id:
            return found
    return None


def _job_tags(layout: Layout) -> Dict[str, Optional[str]]:
    """What every trainer of the job on this data root carries."""
    return {
        LAUNCH_TAG: None,
        "CHARTER_JOB": layout.job,
        DATA_ROOT_TAG: os.path.realpath(str(layout.data_root)),
    }


def _refuse_second(layout: Layout, root: RunRoot) -> None:
    found = (read_json_or_none(root.launch), latest_record(layout.job_dir))
    records = [record for record in found if isinstance(record, dict)]
    pids = {row.pid for row in tagged(_job_tags(layout))}
    for record in records:
        pids.update(row.pid for row in members(record))
    if pids:
        raise busy(
            f"job {layout.job!r} is already running on this host: expected no live process, "
            f"found pid {', '.join(map(str, sorted(pids)))}",
            "wait for it, or stop it first",
        )
    # A supervisor whose trainer has ended still writes the exit record.
    give_up_at = time.monotonic() + LOCK_WAIT_SECONDS
    while any(alive(record.get("supervisor")) for record in records):
        if time.monotonic() >= give_up_at:
            raise busy(
                f"the supervisor of job {layout.job!r} has not ended: {str(root.path)!r}",
                f"read {str(root.path / 'supervisor.log')!r} on the host",
            )
        time.sleep(0.05)


def _set_aside(root: RunRoot) -> None:
    """Keep the earlier attempt's records, out of the way; `launch.json` moves last."""
    before = read_json_or_none(root.launch)
    number = before.get("attempt", 0) if isinstance(before, dict) else 0
    folder = root.path / "attempts" / str(number)
    for name in sorted(PER_ATTEMPT, key="launch.json".__eq__):
        if (root.path / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            os.replace(str(root.path / name), str(folder / name))


def _start(request: Mapping[str, Any], layout: Layout, root: RunRoot, lock: int) -> Dict[str, Any]:
    environment = job_environment(request, layout, root.path)
    environment.update(checked(request.get("secrets"), "secrets"))
    environment[LAUNCH_TAG] = str(request["request_id"])
    offset, size = _write_header(root, layout)
    spec = {
        "argv": request["argv"],
        "cwd": request["cwd"],
        "environment": environment,
        "run_root": str(root.path),
        "latest_run": str(layout.latest_run),
        "latest_pid": str(layout.latest_pid),
        "lock_descriptor": lock,
        "heartbeat_seconds": float(request.get("heartbeat_seconds") or HEARTBEAT_SECONDS),
        "sample_seconds": float(request.get("sample_seconds") or SAMPLE_SECONDS),
        "history_lines": HISTORY_LINES,
        "record": {
            "schema_version": 1,
            "status": "launched",
            "request_id": request["request_id"],
            "job": layout.job,
            "run_id": layout.run_id,
            "attempt": layout.attempt,
            "argv": request["argv"],
            "cwd": request["cwd"],
            "python": request.get("python"),
            "env": checked(request.get("env"), "env"),
            "secret_names": sorted(request.get("secrets") or {}),
            "model_path": request.get("model_path"),
            "runtime_quantization": request.get("runtime_quantization"),
            "artifacts": request.get("artifacts") or [],
            "payload_sha256": request.get("payload_sha256"),
            "data_root": os.path.realpath(str(layout.data_root)),
            "run_root": str(root.path),
            "log": str(root.log),
            "log_offset": offset,
            "log_bytes": size,
        },
    }
    return _spawn(spec, layout, root)


def _spawn(spec: Dict[str, Any], layout: Layout, root: RunRoot) -> Dict[str, Any]:
    """Start the supervisor; it answers once `launch.json` is written."""
    with open(root.path / "supervisor.log", "ab") as log:
        supervisor = subprocess.Popen(
            [*self_argv(layout), "supervise"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=_supervisor_environment(spec["environment"]),
            pass_fds=(spec["lock_descriptor"],),
            start_new_session=True,
        )
    try:
        answer = json.loads(_ask(supervisor, json.dumps(spec).encode("ascii")).decode("ascii"))
    except (ValueError, BrokenPipeError, TimeoutError) as error:
        supervisor.kill()
        raise AgentError(
            "remote_step_failed",
            f"supervisor did not start: {str(root.path)!r}: expected its record, "
            f"found {type(error).__name__}",
            f"read {str(root.path / 'supervisor.log')!r} on the host",
        ) from error
    # It outlives us on purpose; told so, Popen does not warn that nobody waits for it.
    supervisor.returncode = 0
    record: Dict[str, Any] = answer["record"]
    return record


def _ask(supervisor: subprocess.Popen[bytes], description: bytes) -> bytes:
    """Hand over the description, and read until the supervisor lets go of its stdout.

    `communicate` would wait for its end, which is the trainer's.
    """
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor.stdin as pipe:
        pipe.write(description)
    give_up_at = time.monotonic() + START_TIMEOUT_SECONDS
    told = b""
    with supervisor.stdout as answers:
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            ready, _, _ = select.select([answers], [], [], left)
            if not ready:
                raise TimeoutError
            chunk = os.read(answers.fileno(), 65536)
            if not chunk:
                return told
            told += chunk


def _supervisor_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """The host tags, but no secrets, no launch tag: `stop` must not find the supervisor."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    for name, value in environment.items():
        if name.startswith("CHARTER_") and name != LAUNCH_TAG:
            kept[name] = value
    return kept


def _write_header(root: RunRoot, layout: Layout) -> tuple[int, int]:
    """Mark where this attempt's output begins: `(offset of the mark, size after it)`."""
    line = f"=== charter: run {layout.run_id} attempt {layout.attempt} started {now_utc()} ===\n"
    root.log.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(str(root.log_link)):
        os.symlink("logs/run.log", str(root.log_link))
    with open(root.log, "ab") as log:
        offset = log.seek(0, os.SEEK_END)
        log.write(line.encode("ascii"))
    return offset, offset + len(line)


def _check(request: Mapping[str, Any]) -> None:
    argv = request.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        raise usage(f"request.argv: expected a list of texts, found {argv!r}")
    if any("\0" in part for part in argv):
        raise usage("request.argv: expected texts without NUL")
    cwd = request.get("cwd")
    if not isinstance(cwd, str) or not os.path.isabs(cwd):
        raise usage(f"request.cwd: expected an absolute path, found {cwd!r}")
    if not os.path.isdir(cwd):
        raise AgentError(
            "not_found",
            f"project folder is missing: {cwd!r}",
            "unpack the bundle first",
            3,
        )
    for name, value in checked(request.get("secrets"), "secrets").items():
        if len(value) >= SHORTEST_SECRET and any(value in part for part in argv):
            raise guard_refused(
                f"secret in the command line: {name}",
                "the command line is recorded: read the secret from the environment",
            )


@contextlib.contextmanager
def _lock(layout: Layout) -> Iterator[int]:
    """One launch of a job at a time. The supervisor inherits the lock and keeps it until its
    record is on disk, so that it holds although this step may be killed."""
    path = layout.lock(f"launch/{layout.job}")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        give_up_at = time.monotonic() + LOCK_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise busy(
                        f"another launch of job {layout.job!r} is under way",
                        "ask for its status",
                    ) from None
                time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)
