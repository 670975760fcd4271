"""Patterns for files of a run: `*` and `?` stay in one folder, `**` crosses folders.

A pattern without `/` names a file or folder at any depth; one that names a folder means all in it.
"""

from __future__ import annotations

import functools
import re
from typing import Iterable, Pattern


def matches(pattern: str, path: str) -> bool:
    """Whether the relative path, or a folder that it is in, fits the pattern."""
    return bool(_compiled(pattern).fullmatch(path))


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the patterns fits."""
    return any(matches(pattern, path) for pattern in patterns)


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> Pattern[str]:
    anchored = pattern.strip("/")
    prefix = "" if "/" in pattern.rstrip("/") else "(?:.*/)?"
    return re.compile(prefix + _translate(anchored) + "(?:/.*)?", re.DOTALL)


def _translate(pattern: str) -> str:
    parts = []
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/"):
            parts.append("(?:.*/)?")
            position += 3
        elif rest.startswith("**"):
            parts.append(".*")
            position += 2
        elif rest[0] == "*":
            parts.append("[^/]*")
            position += 1
        elif rest[0] == "?":
            parts.append("[^/]")
            position += 1
        else:
            parts.append(re.escape(rest[0]))
            position += 1
    return "".join(parts)
