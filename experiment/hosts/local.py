"""`LocalHost`: the same door where the controller is the machine itself, by subprocess."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiment.errors import RemoteStepFailed, StepTimeout
from experiment.hosts.base import Completed, Progress
from experiment.hosts.talk import Talk, Talks
from remote.agent.files import write_atomic

PUMP_BYTES = 1 << 20
# After TERM a program has this long before its group is killed.
TERM_SECONDS = 2.0


class LocalHost:
    """This machine, with an environment and a folder of its own.

    Args:
        env: the whole environment of what is started; nothing of the controller's leaks in.
        root: the folder that programs start in, made when missing.
    """

    address = "this machine"

    def __init__(self, env: Mapping[str, str], root: str | Path) -> None:
        self._env = dict(env)
        self._root = Path(root)
        self._talks = Talks(self._talk)

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"") -> Completed:
        process = self._start(argv)
        if isinstance(process, Completed):
            return process
        with process:
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except subprocess.TimeoutExpired:
                end_group(process)
                raise _too_late(argv, timeout) from None
            except BaseException:
                end_group(process)
                raise
        return Completed(exit_code(process.returncode), out, err)

    def stream(
        self, argv: Sequence[str], sink: Callable[[bytes], None], *, timeout: float
    ) -> Completed:
        process = self._start(argv)
        if isinstance(process, Completed):
            return process
        complaint: list[bytes] = []
        with process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.close()
            takers = {
                process.stdout.fileno(): sink,
                process.stderr.fileno(): complaint.append,
            }
            try:
                if not _pump(takers, time.monotonic() + timeout):
                    raise _too_late(argv, timeout)
                process.wait(timeout)
            except BaseException:
                end_group(process)
                raise
        return Completed(exit_code(process.returncode), b"", b"".join(complaint))

    def ask(self, argv: Sequence[str], line: bytes, *, timeout: float) -> bytes | Completed:
        try:
            return self._talks.ask(argv, line, time.monotonic() + timeout)
        except TimeoutError:
            raise _too_late(argv, timeout) from None

    def write(self, data: bytes, remote: str, *, timeout: float = 60, mode: int = 0o644) -> None:
        del timeout  # the local disk answers or fails
        try:
            write_atomic(remote, data, mode)
        except OSError as error:
            raise not_written(remote, error) from error

    def read(self, remote: str, *, timeout: float = 60) -> bytes:
        del timeout
        return Path(remote).read_bytes()

    def put(
        self, local: Path, remote: str, *, timeout: float, progress: Progress | None = None
    ) -> None:
        del timeout
        total = local.stat().st_size
        part = f"{remote}.part"
        sent = 0
        with open(local, "rb") as source:
            try:
                Path(remote).parent.mkdir(parents=True, exist_ok=True)
                with open(part, "wb") as target:
                    while chunk := source.read(PUMP_BYTES):
                        target.write(chunk)
                        sent += len(chunk)
                        if progress:
                            progress(sent, total)
                os.replace(part, remote)
            except OSError as error:
                raise not_written(remote, error) from error

    def close(self) -> None:
        self._talks.close()

    def _talk(self, argv: Sequence[str], deadline: float) -> Talk:
        del deadline
        return _PipeTalk(self._start(argv))

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes] | Completed:
        """The running program, or how it ended before it began: as a shell says it."""
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            # A session of its own: Ctrl-C in the controller's terminal is a detach.
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                cwd=self._root,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Completed(127, b"", f"{argv[0]}: not found".encode())
        except PermissionError:
            return Completed(126, b"", f"{argv[0]}: not executable".encode())


class _PipeTalk:
    """A program of this machine on its pipes, or how it ended before it began."""

    def __init__(self, process: subprocess.Popen[bytes] | Completed) -> None:
        self._process = process

    def send(self, data: bytes, deadline: float) -> None:
        del deadline  # the reader is on this machine: it reads, or it ended
        if isinstance(self._process, Completed):
            return
        assert self._process.stdin
        # It may have ended: what it said is read next.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def receive(self, deadline: float) -> bytes:
        if isinstance(self._process, Completed):
            return b""
        assert self._process.stdout
        descriptor = self._process.stdout.fileno()
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            raise TimeoutError("no answer in time")
        return os.read(descriptor, PUMP_BYTES)

    def ended(self, deadline: float) -> Completed:
        if isinstance(self._process, Completed):
            return self._process
        try:
            _, said = self._process.communicate(timeout=max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise TimeoutError("it closed its output and goes on") from None
        return Completed(exit_code(self._process.returncode), b"", said)

    def close(self) -> None:
        if isinstance(self._process, Completed):
            return
        # The end of its stdin ends it, unless it is busy with what was given up.
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(TERM_SECONDS)
        except subprocess.TimeoutExpired:
            end_group(self._process)


def exit_code(returncode: int) -> int:
    """A program's exit code as a shell tells it: 128 + n for death by signal n."""
    return 128 - returncode if returncode < 0 else returncode


def end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL, for a program that was started in a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERM_SECONDS)
            return


def not_written(remote: str, error: OSError) -> RemoteStepFailed:
    """The host could not write a file."""
    return RemoteStepFailed(
        "file not written on the host",
        repr(remote),
        found=error.strerror or str(error),
        hint="check free space and permissions there",
    )


def _pump(takers: dict[int, Callable[[bytes], None]], deadline: float) -> bool:
    """Hand on what the descriptors give until all are at their end; False at the deadline."""
    with selectors.DefaultSelector() as selector:
        for descriptor in takers:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, PUMP_BYTES)
                if chunk:
                    takers[key.fd](chunk)
                else:
                    selector.unregister(key.fd)
    return True


def _too_late(argv: Sequence[str], timeout: float) -> StepTimeout:
    return StepTimeout(
        "program did not end in time",
        repr(argv[0]),
        expected=f"an end within {timeout:g} s",
        found="still running, sent TERM",
        hint="look at its output on this machine",
    )
