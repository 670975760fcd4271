"""The one manifest: what a tree of files holds, and the digest that names the tree.

An entry is `{"path", "bytes", "sha256", "mode"}` for a file (mode "644", or "755" with the owner's
exec bit) or `{"path", "link"}` for a symbolic link. Paths are relative, with `/`. Empty folders
and other mode bits do not count. The payload's tree is taken over everything in the payload, so
its paths begin with `project/`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Callable, Iterable

from remote.agent.errors import guard_refused
from remote.agent.files import PathLike, canonical_json, sha256_bytes, sha256_file

Skip = Callable[[str, bool], bool]


def tree_sha256(entries: Iterable[dict[str, Any]]) -> str:
    """The digest of a tree: SHA-256 of the canonical JSON of its entries, sorted by path."""
    ordered = sorted(entries, key=lambda entry: str(entry["path"]))
    return sha256_bytes(canonical_json(ordered))


def scan_tree(root: PathLike, skip: Skip | None = None) -> list[dict[str, Any]]:
    """The entries of everything under `root`, sorted by path; links are not followed.

    Args:
        root: the folder.
        skip: `skip(relative path, is a folder)`, true for what does not count.

    Raises:
        AgentError: guard_refused for a socket, FIFO or device, or a name that is not UTF-8.
        OSError: a file or folder that can't be read.
    """
    base = Path(root)
    entries = [file_entry(base, relative) for relative in walk(base, skip)]
    return sorted(entries, key=lambda entry: str(entry["path"]))


def walk(base: Path, skip: Skip | None = None) -> list[str]:
    """Relative paths of all files and links under `base`, sorted; folders themselves left out.

    Raises:
        OSError: a folder that can't be read (never left out in silence).
    """
    found: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(str(base), folder)) as listing:
            for item in listing:
                relative = f"{folder}/{item.name}" if folder else item.name
                is_folder = item.is_dir(follow_symlinks=False)
                if skip is not None and skip(relative, is_folder):
                    continue
                if is_folder:
                    folders.append(relative)
                else:
                    found.append(relative)
    return sorted(found)


def file_entry(base: Path, relative: str) -> dict[str, Any]:
    """The manifest entry of one file or link.

    Raises:
        AgentError: guard_refused for anything else, or a name that is not UTF-8.
        OSError: it can't be read.
    """
    path = os.path.join(str(base), relative)
    try:
        relative.encode("utf-8")
    except UnicodeEncodeError:
        raise guard_refused(f"file name is not UTF-8: {relative!r}", "rename the file") from None
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return {"path": relative, "link": os.readlink(path)}
    if not stat.S_ISREG(status.st_mode):
        raise guard_refused(
            f"neither a file nor a link: {relative!r}", "remove the socket, FIFO or device"
        )
    return {
        "path": relative,
        "bytes": status.st_size,
        "sha256": sha256_file(path),
        "mode": "755" if status.st_mode & stat.S_IXUSR else "644",
    }


def differences(
    expected: Iterable[dict[str, Any]], found: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What differs between two manifests: `[{path, expected, found}]`, an entry or None each."""
    before = {str(entry["path"]): entry for entry in expected}
    after = {str(entry["path"]): entry for entry in found}
    return [
        {"path": path, "expected": before.get(path), "found": after.get(path)}
        for path in sorted(set(before) | set(after))
        if before.get(path) != after.get(path)
    ]
