"""A bounded history: one JSON object a line, over the whole run however long it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Mapping

from remote.agent.files import write_atomic


class History:
    """Appends to a file of at most `limit` lines.

    When it is full, every second line goes and `stride` doubles: the caller then waits that many
    times longer between entries, so that the lines stay evenly spaced.

    Args:
        path: the file; lines already there (an earlier attempt) are kept and counted.
        limit: at least 2.
    """

    def __init__(self, path: Path, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"history limit: expected at least 2 lines, found {limit}")
        self.path = path
        self.limit = limit
        self.stride = 1
        kept = self._lines()
        if path.exists() and path.stat().st_size != sum(map(len, kept)):
            write_atomic(path, b"".join(kept))
        self._count = len(kept)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add one line.

        Raises:
            OSError: it can't be written; the file still holds whole lines.
        """
        if self._count >= self.limit:
            self._thin()
        line = json.dumps(entry, sort_keys=True, separators=(",", ":")) + "\n"
        with open(self.path, "ab") as handle:
            handle.write(line.encode("utf-8"))
        self._count += 1

    def _thin(self) -> None:
        kept = self._lines()[::2]
        write_atomic(self.path, b"".join(kept))
        self._count = len(kept)
        self.stride *= 2

    def _lines(self) -> List[bytes]:
        """Whole lines only: a crash may have cut the last one."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
