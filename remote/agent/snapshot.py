"""Step `snapshot`: every input file is re-hashed; the completion marker is written last.

The files are on the host already (uploaded, or fetched from a hub). A folder without a valid
marker is never taken for complete, and a marker is taken away as soon as a file disagrees.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List

from remote.agent.errors import evidence_mismatch, usage
from remote.agent.files import read_json_or_none, sha256_file, write_json
from remote.agent.layout import Layout
from remote.agent.locks import locked
from remote.agent.manifest import tree_sha256, walk

MARKER = ".autodl_model_complete.json"
# A commit can't be moved; a branch or tag can.
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
WAIT_SECONDS = 6 * 3600.0
HINT = "upload that file again, then repeat the step"


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `inputs [{name, kind, source, id, revision, quantization, path (absolute folder),
    files [{path, bytes, sha256}]}]`.

    Evidence `inputs [{name, kind, id, source, revision, path, bytes, files (count), tree_sha256
    (over {path, bytes, sha256}), quantization, reused, reproducible}]`; `reused` says that a valid
    marker was there before; `reproducible` is false without a revision that can't move.

    Raises:
        AgentError: evidence_mismatch (exit 2) naming the file and missing, size_mismatch,
            sha256_mismatch or unexpected; guard_refused for a folder outside the data root.
    """
    inputs = request.get("inputs")
    if not isinstance(inputs, list):
        raise usage(f"request.inputs: expected a list, found {inputs!r}")
    return {"inputs": [_complete(item, layout) for item in inputs]}


def still_true(_evidence: dict[str, Any], request: dict[str, Any], layout: Layout) -> bool:
    """Whether each folder's marker is valid and its files have their sizes."""
    for item in request["inputs"]:
        folder = layout.inside(item["path"])
        marker = read_json_or_none(folder / MARKER)
        if not _marker_names(marker, item) or marker["files"] != listed_files(item):
            return False
        if any(_size(folder / entry["path"]) != entry["bytes"] for entry in marker["files"]):
            return False
    return True


def listed_files(item: dict[str, Any]) -> List[Dict[str, Any]]:
    """The input's files as `{path, bytes, sha256}`, sorted by path.

    Raises:
        AgentError: usage for an empty list or a path that leads out of the folder.
    """
    files = item.get("files")
    if not isinstance(files, list) or not files:
        raise usage(
            f"input {item.get('name')!r}: expected its files, found none",
            "an empty snapshot is no input: check the source",
        )
    listed = []
    for entry in files:
        path = str(entry["path"])
        if path.startswith("/") or ".." in path.split("/") or path == MARKER:
            raise usage(f"input {item.get('name')!r}: not a file of the snapshot: {path!r}")
        listed.append({"path": path, "bytes": entry["bytes"], "sha256": entry["sha256"]})
    return sorted(listed, key=lambda entry: str(entry["path"]))


def _complete(item: dict[str, Any], layout: Layout) -> dict[str, Any]:
    began = time.monotonic()
    folder = layout.inside(str(item.get("path")))
    files = listed_files(item)
    with locked(layout.lock(f"snapshot/{folder}"), WAIT_SECONDS, f"snapshot {folder.name}"):
        marker = read_json_or_none(folder / MARKER)
        reused = _marker_names(marker, item) and marker["files"] == files
        if not reused:
            _remove_marker(folder)
        _audit(item, folder, files)
        if not reused:
            write_json(folder / MARKER, _marker(item, folder, files, time.monotonic() - began))
    return {
        "name": item["name"],
        "kind": item.get("kind"),
        "id": item["id"],
        "source": item["source"],
        "revision": item.get("revision"),
        "path": str(folder),
        "bytes": sum(int(entry["bytes"]) for entry in files),
        "files": len(files),
        "tree_sha256": tree_sha256(files),
        "quantization": item.get("quantization"),
        "reused": reused,
        "reproducible": reproducible(item.get("revision")),
    }


def reproducible(revision: Any) -> bool:
    """Whether the revision names the same bytes for ever: a full commit digest does."""
    return isinstance(revision, str) and bool(COMMIT_PATTERN.fullmatch(revision))


def _marker_names(marker: Any, item: dict[str, Any]) -> bool:
    """Whether the marker is a complete one of this very model and revision (R4)."""
    return (
        isinstance(marker, dict)
        and marker.get("status") == "completed"
        and marker.get("source_model_id") == item.get("id")
        and marker.get("source_hub") == item.get("source")
        and marker.get("revision") == item.get("revision")
        and isinstance(marker.get("files"), list)
    )


def _marker(
    item: dict[str, Any], folder: Path, files: List[Dict[str, Any]], seconds: float
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "status": "completed",
        "source_model_id": item["id"],
        "source_hub": item["source"],
        "revision": item.get("revision"),
        "resolved": str(folder),
        "seconds": round(seconds, 3),
        "bytes": sum(int(entry["bytes"]) for entry in files),
        "files": files,
        "tree_sha256": tree_sha256(files),
        "reproducible": reproducible(item.get("revision")),
    }


def _audit(item: dict[str, Any], folder: Path, files: List[Dict[str, Any]]) -> None:
    wanted = {entry["path"] for entry in files}
    problem = next((text for text in (_fault(folder, entry) for entry in files) if text), None)
    if problem is None:
        extra = [path for path in _own_files(folder) if path not in wanted]
        problem = f"unexpected: {extra[0]!r}: expected no such file" if extra else None
    if problem is not None:
        _remove_marker(folder)
        raise evidence_mismatch(f"input {item.get('name')!r} in {str(folder)!r}: {problem}", HINT)


def _fault(folder: Path, entry: Dict[str, Any]) -> str:
    path = folder / str(entry["path"])
    size = _size(path)
    if size is None:
        return f"missing: {entry['path']!r}: expected {entry['bytes']} bytes"
    if size != entry["bytes"]:
        return f"size_mismatch: {entry['path']!r}: expected {entry['bytes']} bytes, found {size}"
    found = sha256_file(path)
    if found != entry["sha256"]:
        return f"sha256_mismatch: {entry['path']!r}: expected {entry['sha256']}, found {found}"
    return ""


def _own_files(folder: Path) -> List[str]:
    """Files that a loader could read: hidden ones (hub caches, partial downloads) don't count."""
    return [
        path for path in walk(folder) if not any(part.startswith(".") for part in path.split("/"))
    ]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _remove_marker(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(str(folder / MARKER))
