"""The ledger's hash chain: each entry carries its own digest and its predecessor's.

The digest rule is written here on the agent's `canonical_json`; `verify.py` repeats it, because
that file has to stand alone in a results folder. A test holds both equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.evidence import verify
from remote.agent.files import canonical_json, sha256_bytes, write_atomic

FIRST_PREV = verify.FIRST_PREV


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Hex SHA-256 of the entry's canonical JSON without its own `sha256`.

    Raises:
        ValueError: a value that JSON cannot hold exactly (NaN, infinity).
        TypeError: a value that is not JSON.
    """
    return sha256_bytes(canonical_json({k: v for k, v in entry.items() if k != "sha256"}))


def check_chain(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What is broken in a chain: `path link expected found` each, empty when it holds.

    Checked: every entry's digest, its `prev_sha256` (64 zeros for the first) and `seq`, contiguous
    from the first entry's. A dropped tail shows only against a sealed count and head.
    """
    return verify.check_chain(entries)


def head(entries: Sequence[Mapping[str, Any]]) -> str:
    """The last entry's digest; 64 zeros for an empty chain."""
    return str(entries[-1]["sha256"]) if entries else FIRST_PREV


def ledger_bytes(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """The content of `ledger.jsonl`: one canonical JSON object a line."""
    return b"".join(canonical_json(dict(entry)) + b"\n" for entry in entries)


def write_ledger(results_dir: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    """Write `ledger.jsonl` into a results folder, atomically, and return its path."""
    path = results_dir / verify.LEDGER
    write_atomic(path, ledger_bytes(entries))
    return path
