"""What a command prints: the result on stdout, everything else on stderr.

With `--json` stdout holds one JSON object (or one a line, for commands that follow) and stderr
stays silent. Colour and moving progress appear only on a terminal, and never under `NO_COLOR`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from experiment.clock import iso
from experiment.errors import CharterError
from experiment.paths import Home

Say = Callable[[str], None]


@dataclass(frozen=True)
class Output:
    """The one way a command speaks.

    Args:
        as_json: `--json` was given.
        stdout, stderr: where to; None means the process's own, looked up when written.
    """

    as_json: bool = False
    stdout: TextIO | None = None
    stderr: TextIO | None = None

    def result(self, data: Mapping[str, Any], text: str = "") -> None:
        """The command's answer: the object with `--json`, else the text for people."""
        self._write_out(_dump(data) if self.as_json else text)

    def line(self, data: Mapping[str, Any], text: str) -> None:
        """One of many answers (`--follow`, `--watch`), flushed at once."""
        self._write_out(_dump(data) if self.as_json else text)

    def message(self, text: str) -> None:
        """A remark beside the answer, for people only."""
        if not self.as_json:
            print(text, file=self._err, flush=True)

    @contextmanager
    def working(self, what: str) -> Iterator[Say]:
        """Show on a terminal that something is going on; silent elsewhere.

        Yields:
            a function that replaces the text shown.
        """
        if self.as_json or not self._err.isatty():
            yield _silent
            return
        from rich.console import Console

        with Console(file=self._err).status(what) as status:
            yield status.update

    def paint(self, text: str, colour: str) -> str:
        """The text in that colour where colours are wanted, unchanged elsewhere."""
        if self.as_json or os.environ.get("NO_COLOR") or not self._out.isatty():
            return text
        from typer import style

        return style(text, fg=colour)

    def failure(self, error: CharterError) -> int:
        """Print the error where it belongs and give its exit code."""
        if self.as_json:
            self._write_out(_dump({"error": error.as_json()}))
        else:
            print(f"error: {error.line()}", file=self._err)
            for detail in error.details:
                print(f"  {detail}", file=self._err)
        return error.exit_code

    @property
    def _out(self) -> TextIO:
        return self.stdout or sys.stdout

    @property
    def _err(self) -> TextIO:
        return self.stderr or sys.stderr

    def _write_out(self, text: str) -> None:
        if text:
            print(text, file=self._out, flush=True)


@dataclass(frozen=True)
class Session:
    """What every command gets as `ctx.obj`: where Charter lives, and how to speak."""

    home: Home
    output: Output


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of plain, aligned columns, the same on a terminal and in a pipe."""
    table = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def _silent(_text: str) -> None:
    """Progress where nobody watches."""


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    """Money as strings, moments as ISO 8601 in UTC, paths as text, dataclasses as objects.

    Raises:
        TypeError: a kind of value that has no agreed form.
    """
    if isinstance(value, Decimal | Path):
        return str(value)
    if isinstance(value, datetime):
        return iso(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"no JSON form agreed for {type(value).__name__}: {value!r}")
