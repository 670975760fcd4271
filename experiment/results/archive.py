"""The collected archive becomes the results folder: unpacked safely, re-hashed, searched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiment.errors import EvidenceMismatch, GuardRefused, NotFound
from experiment.evidence import verify
from experiment.evidence.verify import INVENTORY, Broken
from remote.agent.errors import AgentError
from remote.agent.files import sync_folder
from remote.agent.globs import matches
from remote.agent.secret_patterns import scan_file
from remote.agent.unpack import extract


def unpack_archive(path: Path, dest: Path) -> dict[str, Any]:
    """Unpack a collected `.tar.gz` into the results folder, once it proved to be what it lists.

    It is unpacked beside the folder, compared with the inventory that it carries, and only then
    moved in, the inventory last. Files of an earlier collection that this one no longer has are
    removed; everything else in the folder stays. Repeatable after a kill at any point.

    Returns:
        `{"files": count without the inventory, "bytes"}`.

    Raises:
        NotFound: no such archive (exit 1).
        GuardRefused: a member that leads outside, a device, a damaged archive.
        EvidenceMismatch: a file missing, unlisted or other than listed.
    """
    if not path.is_file():
        raise NotFound("archive not unpacked", str(path), found="nothing", exit_code=1)
    dest.mkdir(parents=True, exist_ok=True)
    fresh = dest.with_name(f".{dest.name}.unpacking")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        _extract(path, fresh)
        _refuse(path, [*check_inventory(fresh), *_unlisted(fresh)])
        entries = _listed(fresh)
        _remove_stale(dest, entries)
        for name in [*entries, INVENTORY]:
            _move(fresh / name, dest / name, dest)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return {
        "files": len(entries),
        "bytes": sum(int(entry.get("bytes", 0)) for entry in entries.values()),
    }


def check_inventory(folder: Path) -> list[Broken]:
    """Re-hash every entry of a folder's `artifact_inventory.json`.

    Returns:
        What is broken, `path link expected found` each, link always `inventory`; empty when
        everything is as listed. Files that are not listed are not looked at.
    """
    try:
        listed = verify.read_inventory((folder / INVENTORY).read_bytes())
    except OSError as error:
        return [_broken(INVENTORY, "an inventory", error.strerror or "unreadable")]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return [_broken(INVENTORY, "a list of files with hashes", f"{error}")]
    present = {entry["path"]: entry for entry in verify.scan_folder(str(folder), only=listed)}
    broken = []
    for path, entry in sorted(listed.items()):
        expected, found = verify.difference(entry, present.get(path))
        if expected != found:
            broken.append(_broken(path, expected, found))
    return broken


def require_artifacts(folder: Path, names: Sequence[str]) -> list[str]:
    """The required artifacts, all there: a file with the name or pattern, or a folder with files.

    Args:
        names: the contract's `run.artifacts`, patterns as in `remote.agent.globs`.

    Returns:
        The names, in order.

    Raises:
        EvidenceMismatch: one or more are missing (all are named).
    """
    listed = _listed(folder)
    missing = [name for name in names if not any(matches(name, path) for path in listed)]
    if missing:
        raise EvidenceMismatch(
            "required artifact missing",
            missing[0],
            expected="a collected file of that name",
            found="none",
            hint="see logs/run.log; correct the trainer or run.artifacts, then charter run --new",
            details=[f"{name}: missing" for name in missing],
        )
    return list(names)


def refuse_secrets(folder: Path) -> list[dict[str, str]]:
    """Look for secret-like material in every text file of the inventory, a second time, here.

    Returns:
        What was not looked at, `path reason` each (binary files).

    Raises:
        GuardRefused: `FILE:LINE KIND` of each find, never the value.
    """
    found: list[str] = []
    skipped: list[dict[str, str]] = []
    for path, entry in _listed(folder).items():
        if "link" in entry:
            continue
        scan = scan_file(folder / path)
        found += [f"{path}:{line} {kind}" for line, kind in scan.hits]
        if scan.skipped:
            skipped.append({"path": path, "reason": scan.skipped})
    if found:
        raise GuardRefused(
            "results refused",
            str(folder),
            expected="no secret-like material",
            found=found[0],
            hint="rotate the secret, remove it from the run, collect again",
            details=found,
        )
    return skipped


def _extract(path: Path, fresh: Path) -> None:
    try:
        extract(path, fresh)
    except AgentError as error:
        raise GuardRefused("archive refused", str(path), found=error.message) from error


def _refuse(path: Path, broken: Sequence[Broken]) -> None:
    if broken:
        raise EvidenceMismatch(
            "archive differs from its inventory",
            f"{path.name}: {broken[0]['path']}",
            expected=broken[0]["expected"],
            found=broken[0]["found"],
            hint="collect again",
            details=[f"{item['path']}: {item['found']}" for item in broken],
        )


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of the inventory by path; none when there is no readable one."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return verify.read_inventory((folder / INVENTORY).read_bytes())
    return {}


def _unlisted(fresh: Path) -> list[Broken]:
    listed = {*_listed(fresh), INVENTORY}
    strays = verify.scan_folder(str(fresh), skip=listed)
    return [_broken(entry["path"], "no such file", "unlisted") for entry in strays]


def _remove_stale(dest: Path, entries: Iterable[str]) -> None:
    keep = set(entries)
    for name in _listed(dest):
        if name in keep or not _parents_are_real(dest, name) or (dest / name).is_dir():
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (dest / name).unlink()


def _move(source: Path, target: Path, dest: Path) -> None:
    """Rename over what is there; links or files in the place of its folders give way."""
    for parent in reversed([p for p in target.parents if p != dest and dest in p.parents]):
        if parent.is_symlink() or parent.is_file():
            parent.unlink()
        parent.mkdir(exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    os.replace(source, target)
    if target.name == INVENTORY:
        sync_folder(target.parent)


def _parents_are_real(dest: Path, name: str) -> bool:
    parents = [p for p in (dest / name).parents if dest in p.parents]
    return not any(parent.is_symlink() for parent in parents)


def _broken(path: str, expected: str, found: str) -> Broken:
    return {"path": path, "link": "inventory", "expected": expected, "found": found}
