"""Files by SFTP: one session kept open, for one thread at a time, opened again after a cut."""

from __future__ import annotations

import errno
import posixpath
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import paramiko

from experiment.errors import HostUnreachable
from experiment.hosts.local import not_written

Answer = TypeVar("Answer")

SMALL_BYTES = 32_000  # one packet: asking for more in advance gains nothing


class SftpFiles:
    """What a host does with files. Foreign exceptions pass; `connection.unreachable` maps them.

    Args:
        open_channel: gives a fresh session channel on a live connection, by a deadline.
    """

    def __init__(self, open_channel: Callable[[float], Any]) -> None:
        self._open_channel = open_channel
        # paramiko's client is not for threads: it hands answers to the wrong caller.
        self._lock = threading.Lock()
        self._session: Any = None

    def write(self, data: bytes, remote: str, mode: int, deadline: float) -> None:
        """Replace a file atomically; the folder is made when it is missing."""
        part = f"{remote}.{uuid.uuid4().hex[:8]}.part"

        def work(sftp: Any) -> None:
            with _create(sftp, part) as target:
                target.chmod(mode)
                target.set_pipelined(True)
                target.write(data)
            sftp.posix_rename(part, remote)

        self._do(work, remote, deadline)

    def read(self, remote: str, deadline: float) -> bytes:
        """The bytes of a file; FileNotFoundError when there is none."""

        def work(sftp: Any) -> bytes:
            with sftp.open(remote, "rb") as file:
                size = file.stat().st_size or 0
                if size > SMALL_BYTES:
                    file.prefetch(size)
                return bytes(file.read())

        return self._do(work, remote, deadline)

    def make_folder(self, folder: str, deadline: float) -> None:
        """The folder and those above it, as far as they are missing."""
        self._do(lambda sftp: _make_folders(sftp, folder), folder, deadline)

    def finish(self, part: str, remote: str, size: int, deadline: float) -> None:
        """Give a whole file its name.

        Raises:
            HostUnreachable: the part is not whole: the transfer was cut.
        """

        def work(sftp: Any) -> None:
            found = sftp.stat(part).st_size
            if found != size:
                raise HostUnreachable(
                    "transfer was cut",
                    remote,
                    expected=f"{size} bytes",
                    found=f"{found} bytes",
                    hint="send the file again",
                )
            sftp.posix_rename(part, remote)

        # Not twice: after a rename whose answer was lost the part is gone.
        self._do(work, remote, deadline, repeat=False)

    def _do(
        self, work: Callable[[Any], Answer], remote: str, deadline: float, *, repeat: bool = True
    ) -> Answer:
        if not self._lock.acquire(timeout=left(deadline)):
            raise TimeoutError("another file transfer is still under way")
        try:
            kept = self._session is not None
            try:
                return self._attempt(work, remote, deadline)
            except (OSError, EOFError, paramiko.SSHException) as error:
                timed_out = isinstance(error, TimeoutError)
                if timed_out or self._broken(error):
                    # Also after a timeout: a late answer would be taken for the next call's.
                    self._session = None
                if timed_out or not (kept and repeat and self._session is None):
                    raise
            return self._attempt(work, remote, deadline)
        finally:
            self._lock.release()

    def _attempt(self, work: Callable[[Any], Answer], remote: str, deadline: float) -> Answer:
        if self._session is None or self._session.get_channel().closed:
            channel = self._open_channel(deadline)
            channel.settimeout(left(deadline))
            channel.invoke_subsystem("sftp")
            self._session = paramiko.SFTPClient(channel)
        self._session.get_channel().settimeout(left(deadline))
        try:
            return work(self._session)
        except (FileNotFoundError, TimeoutError):
            raise
        except OSError as error:
            if self._broken(error):
                raise
            # The host's file system says no: its answer, not a broken link.
            raise not_written(remote, error) from error

    def _broken(self, error: Exception) -> bool:
        if isinstance(error, EOFError | paramiko.SSHException) or self._session is None:
            return True
        channel = self._session.get_channel()
        return bool(channel.closed or not channel.transport.is_active())


def left(deadline: float) -> float:
    """Seconds left, never so few that a socket call would mean "do not wait"."""
    return max(0.05, deadline - time.monotonic())


def _create(sftp: Any, path: str) -> Any:
    try:
        return sftp.open(path, "wb")
    except FileNotFoundError:
        _make_folders(sftp, posixpath.dirname(path))
    try:
        return sftp.open(path, "wb")
    except FileNotFoundError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a file is where a folder should be") from error


def _make_folders(sftp: Any, folder: str) -> None:
    missing = []
    while folder not in ("", "/") and not _is_there(sftp, folder):
        missing.append(folder)
        folder = posixpath.dirname(folder)
    for name in reversed(missing):
        try:
            sftp.mkdir(name)
        except OSError:
            # Somebody else may have made it meanwhile.
            if not _is_there(sftp, name):
                raise


def _is_there(sftp: Any, path: str) -> bool:
    try:
        sftp.stat(path)
    except FileNotFoundError:
        return False
    return True
