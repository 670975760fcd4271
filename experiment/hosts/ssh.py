"""`SshHost`: a machine behind one SSH connection, many channels, and one SFTP session.

Programs run on raw channels: Fabric's `run` decodes, is quadratic in stdout, and hangs on a
program that reads stdin. Fabric opens the connection, through `connection.open_connection`.
"""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
from fabric import Connection
from paramiko.common import cMSG_CHANNEL_REQUEST

from experiment.errors import HostUnreachable, RemoteStepFailed, StepTimeout, UsageError
from experiment.hosts.base import LONGEST_COMMAND_BYTES, Completed, Endpoint, Progress
from experiment.hosts.connection import open_connection, unreachable
from experiment.hosts.sftp import SftpFiles, left
from experiment.hosts.talk import Talk, Talks

LOGIN_SECONDS = 30.0
CHANNEL_SECONDS = 15.0
# How long after a deadline the host may take to show that it is there at all.
PROBE_SECONDS = 1.0
READ_BYTES = 1 << 20
PACKET_BYTES = 32768 - 64  # what paramiko puts into one packet to OpenSSH


class SshHost:
    """A machine by SSH. Safe for threads; opens on the first call and again after a cut.

    A call that never started on the host is repeated once on a new connection; one that may have
    started never is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._opening = threading.Lock()
        self._connection: Connection | None = None
        self._files = SftpFiles(self._open_channel)
        self._talks = Talks(self._talk)

    @property
    def address(self) -> str:
        return self._endpoint.address

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"") -> Completed:
        out: list[bytes] = []
        done = self._execute(argv, stdin, out.append, timeout)
        return Completed(done.returncode, b"".join(out), done.stderr)

    def stream(
        self, argv: Sequence[str], sink: Callable[[bytes], None], *, timeout: float
    ) -> Completed:
        return self._execute(argv, b"", sink, timeout)

    def ask(self, argv: Sequence[str], line: bytes, *, timeout: float) -> bytes | Completed:
        deadline = time.monotonic() + timeout
        with self._within(timeout):
            try:
                return self._talks.ask(argv, line, deadline)
            except TimeoutError:
                raise self._too_late(argv, timeout) from None

    def write(self, data: bytes, remote: str, *, timeout: float = 60, mode: int = 0o644) -> None:
        with self._within(timeout):
            self._files.write(data, remote, mode, time.monotonic() + timeout)

    def read(self, remote: str, *, timeout: float = 60) -> bytes:
        with self._within(timeout):
            return self._files.read(remote, time.monotonic() + timeout)

    def put(
        self, local: Path, remote: str, *, timeout: float, progress: Progress | None = None
    ) -> None:
        deadline = time.monotonic() + timeout
        part = f"{remote}.part"
        total = local.stat().st_size
        with open(local, "rb") as source, self._within(timeout):
            self._files.make_folder(posixpath.dirname(remote), deadline)
            # dd is everywhere, takes a path as an argument and needs no shell redirection.
            channel = self._start(["dd", f"of={part}", "bs=1048576"], deadline)
            with contextlib.closing(channel):
                self._feed_file(channel, source, total, deadline, progress)
                self._check_copy(channel, remote, deadline)
            self._files.finish(part, remote, total, deadline)

    def close(self) -> None:
        self._talks.close()
        with self._opening:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.client.close()

    def _execute(
        self, argv: Sequence[str], stdin: bytes, sink: Callable[[bytes], None], timeout: float
    ) -> Completed:
        deadline = time.monotonic() + timeout
        with self._within(timeout):
            channel = self._start(argv, deadline)
            with contextlib.closing(channel), _side_threads(channel, stdin) as complaint:
                try:
                    while chunk := channel.recv(READ_BYTES):
                        _call(sink, chunk)
                        channel.settimeout(left(deadline))
                    ended = channel.status_event.wait(left(deadline))
                except TimeoutError:
                    ended = False
                except BaseException:
                    _terminate(channel)
                    raise
                if not ended:
                    _terminate(channel)
                    raise self._too_late(argv, timeout)
            return Completed(self._exit_code(channel), b"", b"".join(complaint))

    def _talk(self, argv: Sequence[str], deadline: float) -> Talk:
        return _ChannelTalk(self._start(argv, deadline), self._exit_code)

    def _start(self, argv: Sequence[str], deadline: float) -> Any:
        command = shlex.join(argv)  # the one place where arguments are quoted
        if len(command.encode()) > LONGEST_COMMAND_BYTES:
            raise UsageError(
                "command line too long",
                repr(argv[0]),
                expected=f"at most {LONGEST_COMMAND_BYTES} bytes",
                found=str(len(command.encode())),
                hint="send the data on stdin or in a file",
            )
        channel = self._open_channel(deadline)
        channel.settimeout(left(deadline))
        channel.exec_command(command)
        return channel

    def _open_channel(self, deadline: float) -> Any:
        """A channel on the pooled connection, or on a new one when that turns out to be dead."""
        transport, pooled = self._transport(deadline)
        # Half of the time at most, so that a new login can still follow.
        patience = min(CHANNEL_SECONDS, left(deadline) / 2 if pooled else left(deadline))
        try:
            return transport.open_session(timeout=patience)
        except paramiko.ChannelException:
            raise  # the host is there and refuses another session
        except (OSError, EOFError, paramiko.SSHException):
            self._drop(transport)
            if not pooled:
                raise
        transport, _ = self._transport(deadline)
        return transport.open_session(timeout=min(CHANNEL_SECONDS, left(deadline)))

    def _transport(self, deadline: float) -> tuple[Any, bool]:
        """The live transport, and whether it was there already; opened once under the lock."""
        if not self._opening.acquire(timeout=left(deadline)):
            raise TimeoutError("another call is still opening the connection")
        try:
            if self._connection is not None and self._connection.transport.is_active():
                return self._connection.transport, True
            self._connection = None
            self._connection = open_connection(
                self._endpoint, timeout=min(LOGIN_SECONDS, left(deadline))
            )
            return self._connection.transport, False
        finally:
            self._opening.release()

    def _drop(self, transport: Any) -> None:
        transport.close()

    @contextlib.contextmanager
    def _within(self, timeout: float) -> Iterator[None]:
        """Foreign exceptions become ours; a wait that paramiko does not bound ends here too."""
        timer = threading.Timer(timeout + 2 * PROBE_SECONDS, self._abort)
        timer.daemon = True
        timer.start()
        try:
            with unreachable(self._endpoint):
                yield
        except _CallerFailed as failed:
            raise failed.cause from None
        finally:
            timer.cancel()

    def _abort(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.transport.close()

    def _feed_file(
        self, channel: Any, source: Any, total: int, deadline: float, progress: Progress | None
    ) -> None:
        sent = 0
        try:
            while block := source.read(32 * PACKET_BYTES):
                channel.settimeout(left(deadline))
                _send(channel, block)
                sent += len(block)
                if progress:
                    _call(progress, sent, total)
            channel.shutdown_write()
        except TimeoutError:
            _terminate(channel)
            raise self._too_late(["put"], deadline) from None
        except OSError:
            # The program ended before it had read everything: its own words say why.
            if not channel.status_event.is_set() or channel.exit_status < 0:
                raise

    def _check_copy(self, channel: Any, remote: str, deadline: float) -> None:
        if not channel.status_event.wait(left(deadline)):
            _terminate(channel)
            raise self._too_late(["dd"], deadline)
        code = self._exit_code(channel)
        if code:
            channel.settimeout(left(deadline))
            said = channel.recv_stderr(4096).decode("utf-8", "replace").strip()
            raise RemoteStepFailed(
                "file not written on the host",
                repr(remote),
                found=said.splitlines()[0] if said else f"dd: exit {code}",
                hint="check free space and permissions there",
            )

    def _exit_code(self, channel: Any) -> int:
        name = getattr(channel, "exit_signal", "")
        if name:
            known = getattr(signal, f"SIG{name}", None)
            return 128 + int(known) if known else 255
        cut = not channel.eof_received and not channel.transport.is_active()
        if channel.exit_status < 0 or cut:
            raise EOFError("connection was cut while the program ran")
        return int(channel.exit_status)

    def _too_late(self, argv: Sequence[str], timeout: float) -> Exception:
        """The program is slow, or the host is gone: a new channel tells which."""
        connection = self._connection
        try:
            if connection is None:
                raise EOFError
            connection.transport.open_session(timeout=PROBE_SECONDS).close()
        except (OSError, EOFError, paramiko.SSHException):
            self._abort()
            return HostUnreachable(
                "host stopped answering",
                self.address,
                expected=f"an answer of {argv[0]!r} within {timeout:g} s",
                found="silence",
                hint="what runs there is not affected; try again",
            )
        return StepTimeout(
            "program did not end in time",
            repr(argv[0]),
            expected=f"an end within {timeout:g} s",
            found=f"still running on {self.address}",
            hint="look at it there",
        )


class _ChannelTalk:
    """A program on a channel of its own."""

    def __init__(self, channel: Any, exit_code: Callable[[Any], int]) -> None:
        self._channel = channel
        self._exit_code = exit_code

    def send(self, data: bytes, deadline: float) -> None:
        self._channel.settimeout(left(deadline))
        try:
            _send(self._channel, data)
        except OSError:
            # It ended before it had read everything: what it said is read next.
            if not self._channel.eof_received:
                raise

    def receive(self, deadline: float) -> bytes:
        self._channel.settimeout(left(deadline))
        return bytes(self._channel.recv(READ_BYTES))

    def ended(self, deadline: float) -> Completed:
        if not self._channel.status_event.wait(left(deadline)):
            raise TimeoutError("it closed its output and goes on")
        said = self._channel.recv_stderr(1 << 16)
        return Completed(self._exit_code(self._channel), b"", said)

    def close(self) -> None:
        # On a connection that is gone there is nothing to let go of.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


class _CallerFailed(Exception):
    """Carries what a caller's own function raised past the translation of socket errors."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _call(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except BaseException as error:
        raise _CallerFailed(error) from error


def _send(channel: Any, data: bytes) -> None:
    # `sendall` copies what is left for each packet: quadratic in the block's size.
    for start in range(0, len(data), PACKET_BYTES):
        channel.sendall(data[start : start + PACKET_BYTES])


@contextlib.contextmanager
def _side_threads(channel: Any, stdin: bytes) -> Iterator[list[bytes]]:
    """Feed stdin and gather stderr beside the reader of stdout; yields stderr's pieces."""
    complaint: list[bytes] = []
    threads = [threading.Thread(target=_gather, args=(channel, complaint), daemon=True)]
    if stdin:
        threads.append(threading.Thread(target=_feed, args=(channel, stdin), daemon=True))
    else:
        channel.shutdown_write()
    for thread in threads:
        thread.start()
    try:
        yield complaint
        for thread in threads:
            thread.join()
    except BaseException:
        channel.close()  # wakes both
        raise


def _gather(channel: Any, complaint: list[bytes]) -> None:
    # A timeout or a cut is seen and told by the reader of stdout.
    with contextlib.suppress(OSError, EOFError):
        while chunk := channel.recv_stderr(READ_BYTES):
            complaint.append(chunk)


def _feed(channel: Any, stdin: bytes) -> None:
    # A program may end without reading all of its stdin, as in a pipe.
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        _send(channel, stdin)
        channel.shutdown_write()


def _terminate(channel: Any) -> None:
    """Ask sshd to send TERM to the program's group; closing the channel would let it run on.

    OpenSSH does so for every user but root; agent steps are safe to be left running.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string("TERM")
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.transport._send_user_message(message)
