"""Step `collect`: scan the run for secrets, then write the inventory of what will be archived.

Nothing is packed while something in the run looks like a secret. The inventory is the list that
the archive is made from and that everybody re-hashes later; it is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple

from remote.agent.errors import AgentError, guard_refused, usage
from remote.agent.files import sha256_file, write_json
from remote.agent.globs import matches, matches_any
from remote.agent.layout import Layout, RunRoot
from remote.agent.manifest import walk
from remote.agent.secret_patterns import CHUNK_BYTES, Scanner, kinds

# Records of the run itself: they are in every archive, whatever the contract's patterns say.
RECORDS = (
    "logs/run.log",
    "run.log",
    "launch.json",
    "process-exit.json",
    "preflight.json",
    "metrics.jsonl",
    "summary.json",
    "environment.txt",
    "verifier.log",
)
MOST_HITS_NAMED = 20


class Gathered(NamedTuple):
    """What was read: manifest entries, secrets found, files not scanned, and files left out."""

    entries: List[Dict[str, Any]]
    secrets: List[str]
    unscanned: List[Dict[str, str]]
    left_out: List[Dict[str, str]]


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `{run_root, include, exclude, artifacts}`, lists of patterns (see `globs`). With
    `include` empty everything counts. Required artifacts and the run's records always do.

    Evidence `{inventory (absolute path), inventory_sha256, file_count, total_bytes (of files),
    skipped [{path, reason}] (archived but not scanned for secrets), left_out [{path, reason}],
    artifacts {present, missing}}`.

    Raises:
        AgentError: not_found (exit 3) without the run root; guard_refused (exit 2) naming file,
            line and kind of what looks like a secret; usage for wrong fields.
        OSError: a file that can't be read.
    """
    root = layout.run_root(request.get("run_root"))
    include, exclude, artifacts = (
        _patterns(request, name) for name in ("include", "exclude", "artifacts")
    )
    if not root.path.is_dir():
        raise AgentError("not_found", f"run root is missing: {str(root.path)!r}", "launch first", 3)
    # An older inventory must not vouch for files that are about to be read again.
    with contextlib.suppress(FileNotFoundError):
        root.inventory.unlink()
    gathered = gather(root, include, exclude, artifacts)
    if gathered.secrets:
        raise guard_refused(
            _secret_message(gathered.secrets), "rotate it and remove it, then collect"
        )
    inventory = _inventory(root, gathered)
    write_json(root.inventory, inventory)
    return {
        "inventory": str(root.inventory),
        "inventory_sha256": sha256_file(root.inventory),
        "file_count": inventory["file_count"],
        "total_bytes": inventory["total_bytes"],
        "skipped": gathered.unscanned,
        "left_out": gathered.left_out,
        "artifacts": _artifact_presence(artifacts, gathered.entries),
    }


def gather(root: RunRoot, include: List[str], exclude: List[str], artifacts: List[str]) -> Gathered:
    """Read every file of the run once: hash it and scan it in the same pass."""
    gathered = Gathered([], [], [], [])
    for relative in walk(root.path):
        if relative == root.inventory.name:
            continue
        if not _wanted(relative, include, exclude, artifacts):
            gathered.left_out.append({"path": relative, "reason": "not asked for"})
            continue
        _take(root.path, relative, gathered)
    return gathered


def _wanted(relative: str, include: List[str], exclude: List[str], artifacts: List[str]) -> bool:
    if relative in RECORDS or matches_any(artifacts, relative):
        return True
    if matches_any(exclude, relative):
        return False
    return not include or matches_any(include, relative)


def _take(base: Path, relative: str, gathered: Gathered) -> None:
    try:
        relative.encode("utf-8")
    except UnicodeEncodeError:
        raise guard_refused(f"file name is not UTF-8: {relative!r}", "rename the file") from None
    try:
        status = os.lstat(str(base / relative))
        if stat.S_ISLNK(status.st_mode):
            _take_link(base, relative, gathered)
        elif stat.S_ISREG(status.st_mode):
            _take_file(base, relative, status, gathered)
        else:
            gathered.left_out.append({"path": relative, "reason": "neither a file nor a link"})
    except FileNotFoundError:
        gathered.left_out.append({"path": relative, "reason": "vanished while it was read"})


def _take_link(base: Path, relative: str, gathered: Gathered) -> None:
    target = os.readlink(str(base / relative))
    folder = os.path.dirname(relative)
    within = os.path.normpath(os.path.join(folder, target))
    if os.path.isabs(target) or within.split("/")[0] == "..":
        gathered.left_out.append({"path": relative, "reason": "a link out of the run root"})
        return
    if not os.path.exists(str(base / relative)):
        gathered.left_out.append({"path": relative, "reason": "a link to nothing"})
        return
    gathered.entries.append({"path": relative, "link": target})


def _take_file(base: Path, relative: str, status: os.stat_result, gathered: Gathered) -> None:
    digest = hashlib.sha256()
    scanner = Scanner()
    size = 0
    with open(str(base / relative), "rb") as handle:
        for chunk in iter(lambda: handle.read(CHUNK_BYTES), b""):
            digest.update(chunk)
            scanner.feed(chunk)
            size += len(chunk)
    hits, skipped = scanner.finish()
    gathered.secrets.extend(f"{relative}:{line} {kind}" for line, kind in hits)
    if skipped:
        gathered.unscanned.append({"path": relative, "reason": skipped})
    gathered.entries.append(
        {
            "path": relative,
            "bytes": size,
            "sha256": digest.hexdigest(),
            "mode": "755" if status.st_mode & stat.S_IXUSR else "644",
        }
    )


def _inventory(root: RunRoot, gathered: Gathered) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "status": "complete",
        "run_root": str(root.path),
        "file_count": len(gathered.entries),
        "total_bytes": sum(int(entry.get("bytes", 0)) for entry in gathered.entries),
        "files": gathered.entries,
        "left_out": gathered.left_out,
        "secret_scan": {
            "status": "PASS",
            "kinds": kinds(),
            "scanned": len(gathered.entries) - len(gathered.unscanned),
            "skipped": gathered.unscanned,
        },
        "inventory_self_excluded": True,
        "archive_includes_inventory": True,
    }


def _artifact_presence(
    artifacts: List[str], entries: Iterable[Dict[str, Any]]
) -> dict[str, List[str]]:
    paths = [str(entry["path"]) for entry in entries]
    present = [pattern for pattern in artifacts if any(matches(pattern, path) for path in paths)]
    return {
        "present": present,
        "missing": [pattern for pattern in artifacts if pattern not in present],
    }


def _secret_message(secrets: List[str]) -> str:
    named = ", ".join(secrets[:MOST_HITS_NAMED])
    more = len(secrets) - MOST_HITS_NAMED
    return f"secret-like material in the run: {named}" + (f" and {more} more" if more > 0 else "")


def _patterns(request: dict[str, Any], name: str) -> List[str]:
    value = request.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise usage(f"request.{name}: expected a list of patterns, found {value!r}")
    return value
