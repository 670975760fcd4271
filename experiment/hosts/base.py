"""The one door to a machine: run, write, read, put, stream. Arguments are lists, quoted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

# A longer command line fails on Linux hosts (128 KB), and over 300 KB it ends the connection.
LONGEST_COMMAND_BYTES = 100_000
# What a program may say in one line before it is taken for broken, or hostile.
LONGEST_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Completed:
    """A program that ended: what it said, and how.

    `returncode` is the program's own, or 128 + n when signal n ended it.
    """

    returncode: int
    stdout: bytes
    stderr: bytes

    def complaint(self) -> str:
        """The last line of stderr, else of stdout, for an error message."""
        for text in (self.stderr, self.stdout):
            lines = text.decode("utf-8", "replace").strip().splitlines()
            if lines:
                return lines[-1][:400]
        return ""


@dataclass(frozen=True)
class Endpoint:
    """Where a machine answers, and how it is known again.

    Args:
        kind: `ssh`, or `local` when the controller is the machine itself.
        host, port, user: as for `ssh -p PORT USER@HOST`; empty and 0 for `local`.
        key_path: private key that opens it.
        host_key: the pinned public host key, `ssh-ed25519 AAAA…`.
        env: `local` only: the whole environment of what is started, as (name, value) pairs.
        root: `local` only: the folder that programs start in.
    """

    kind: Literal["ssh", "local"]
    host: str = ""
    port: int = 0
    user: str = ""
    key_path: Path | None = None
    host_key: str | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    root: str = ""

    @property
    def address(self) -> str:
        """For people."""
        return "this machine" if self.kind == "local" else f"{self.user}@{self.host}:{self.port}"


Progress = Callable[[int, int], None]


class Host(Protocol):
    """A machine behind one door. Every call returns within its timeout (seconds), or raises.

    Raises (all of them):
        HostUnreachable: the machine can't be reached; nothing follows about what runs on it.
        StepTimeout: it is reachable, but the program did not end in time. It is sent TERM, which
            an SSH server obeys for every user but root: it may go on by itself.
    """

    @property
    def address(self) -> str:
        """For people: `user@host:port`, or "this machine"."""

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"") -> Completed:
        """Run a program to its end. Output is bytes, unchanged."""

    def stream(
        self, argv: Sequence[str], sink: Callable[[bytes], None], *, timeout: float
    ) -> Completed:
        """Run a program and hand its stdout to `sink` as it comes; `Completed.stdout` is empty.

        What `sink` raises ends the program (TERM) and passes through.
        """

    def ask(self, argv: Sequence[str], line: bytes, *, timeout: float) -> bytes | Completed:
        """One line to a program that answers each line with one, and is kept running for the next.

        An empty line, which it answers with an empty one, is a sign of life.

        Returns:
            its answer without the newline; or how it ended instead of answering.

        Raises:
            RemoteStepFailed: the answer is longer than `LONGEST_LINE_BYTES`.
        """

    def write(self, data: bytes, remote: str, *, timeout: float = 60, mode: int = 0o644) -> None:
        """Replace a file atomically; the folder is made when it is missing."""

    def read(self, remote: str, *, timeout: float = 60) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: there is none.
        """

    def put(
        self, local: Path, remote: str, *, timeout: float, progress: Progress | None = None
    ) -> None:
        """Copy a file of any size to `remote` atomically; `progress(sent, total)` in bytes.

        Raises:
            FileNotFoundError: the local file is missing.
            RemoteStepFailed: the host could not write it (disk full, a folder in its place).
        """

    def close(self) -> None:
        """Let go of the connection; the next call opens it again. Ends nothing on the host."""
