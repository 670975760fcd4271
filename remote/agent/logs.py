"""Step `logs`: a piece of the run's log, by offset or as a tail of the newest attempt."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

from remote.agent.errors import AgentError, usage
from remote.agent.files import read_json_or_none
from remote.agent.layout import Layout, RunRoot

MAX_BYTES = 1 << 20
TAIL_LINES = 80


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Request `run_root`, `max_bytes`, and either `offset` (bytes) or `tail_lines`.

    Evidence `{text, offset, next_offset, size}`: the text between two byte offsets. A letter of
    several bytes is never cut; bytes that are no UTF-8 become U+FFFD. An offset beyond the log's
    end (the log was replaced) begins at 0.

    Raises:
        AgentError: not_found (exit 4) without a log; usage for a wrong field.
    """
    root = layout.run_root(request.get("run_root"))
    limit = _count(request, "max_bytes", MAX_BYTES)
    if not root.log.is_file():
        raise AgentError(
            "not_found", f"log is missing: {str(root.log)!r}", "the run was not launched yet", 4
        )
    size = root.log.stat().st_size
    if request.get("offset") is not None:
        offset = _count(request, "offset", 0)
        offset = offset if offset <= size else 0
    else:
        lines = _count(request, "tail_lines", TAIL_LINES)
        offset = tail_offset(root.log, lines, limit, section(root))
    text, following = read_text(root.log, offset, limit)
    return {"text": text, "offset": offset, "next_offset": following, "size": size}


def section(root: RunRoot) -> int:
    """Where the newest attempt's part of the log begins: earlier ones are no evidence for it."""
    record = read_json_or_none(root.launch)
    return int(record.get("log_offset", 0)) if isinstance(record, dict) else 0


def tail_lines(path: Path, lines: int, limit: int, begin: int = 0) -> List[str]:
    """The last lines of a file after byte `begin`, at most `limit` bytes of them."""
    text, _ = read_text(path, tail_offset(path, lines, limit, begin), limit)
    return text.splitlines()


def tail_offset(path: Path, lines: int, limit: int, begin: int = 0) -> int:
    """Where the last `lines` lines begin, at or after `begin` and within the last `limit` bytes."""
    with open(path, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        start = max(min(begin, size), size - limit)
        handle.seek(start)
        data = handle.read(size - start)
    if lines == 0:
        return start + len(data)
    cut = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        cut = data.rfind(b"\n", 0, cut)
        if cut < 0:
            return start
    return start + cut + 1


def read_text(path: Path, offset: int, limit: int) -> Tuple[str, int]:
    """At most `limit` bytes from `offset` as text, and the offset behind them."""
    with open(path, "rb") as handle:
        handle.seek(offset)
        data = handle.read(max(limit, 4))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    pending, _ = decoder.getstate()
    return text, offset + len(data) - len(pending)


def _count(request: Dict[str, Any], name: str, default: int) -> int:
    value = request.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise usage(f"request.{name}: expected a whole number from 0, found {value!r}")
    return int(value)
