"""Step `unpack`: the payload becomes the project folder, after its hash was compared.

The hash is compared before anything is extracted, and the tree's digest before anything is
visible: the bundle's folder appears by one rename, and the link `project` is switched by another.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tarfile
import zlib
from pathlib import Path
from typing import Any, Dict, List, Set

from remote.agent.errors import AgentError, evidence_mismatch, guard_refused, usage
from remote.agent.files import CHUNK_BYTES, read_json_or_none, sha256_file, sync_folder, write_json
from remote.agent.layout import Layout
from remote.agent.manifest import differences, file_entry, scan_tree, tree_sha256

SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
AGAIN = "send the payload again"


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `{payload (absolute path), payload_sha256, tree_sha256}`.

    Evidence `{project_dir (real path), payload_sha256, tree_sha256, files (count, with links),
    restored [paths that had been changed in place since an earlier unpack]}`.

    Raises:
        AgentError: guard_refused (exit 2) for another hash, before extraction, or an unsafe
            member; evidence_mismatch (exit 2) for another tree; not_found without the payload.
        OSError: the disk.
    """
    payload, payload_sha256, tree = (
        _field(request, name) for name in ("payload", "payload_sha256", "tree_sha256")
    )
    _compare_payload(payload, payload_sha256)
    bundle = layout.bundle(tree)
    fresh = bundle.parent / f".{bundle.name}.partial"
    shutil.rmtree(str(fresh), ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        extract(Path(payload), fresh)
        entries = scan_tree(fresh)
        _compare_tree(entries, tree)
        restored = _publish(fresh, bundle, entries)
    finally:
        shutil.rmtree(str(fresh), ignore_errors=True)
    write_json(_manifest(layout, tree), {"tree_sha256": tree, "entries": entries})
    _switch_link(layout, bundle)
    return {
        "project_dir": os.path.realpath(str(layout.project)),
        "payload_sha256": payload_sha256,
        "tree_sha256": tree,
        "files": len(entries),
        "restored": restored,
    }


def still_true(evidence: dict[str, Any], _request: dict[str, Any], layout: Layout) -> bool:
    """Whether the link leads to that project and every file of the bundle is as it was."""
    if os.path.realpath(str(layout.project)) != evidence["project_dir"]:
        return False
    recorded = read_json_or_none(_manifest(layout, evidence["tree_sha256"]))
    if recorded is None:
        return False
    return not _changed(layout.bundle(evidence["tree_sha256"]), recorded["entries"])


def extract(payload: Path, folder: Path) -> None:
    """Extract a tar.gz of files, folders and links that stay inside `folder`.

    Raises:
        AgentError: guard_refused for absolute paths, `..`, links that lead outside, hard links,
            devices, a path given twice or below a link, and a damaged archive.
    """
    seen: Set[str] = set()
    links: Set[str] = set()
    try:
        with tarfile.open(str(payload), "r:gz") as archive:
            for member in archive:
                path = _safe_path(member, links)
                if path == "":
                    continue
                if not member.isdir() and path in seen:
                    raise guard_refused(f"payload holds a path twice: {path!r}", AGAIN)
                seen.add(path)
                _write_member(archive, member, folder / path)
                if member.issym():
                    links.add(path)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise guard_refused(f"payload is damaged: {str(payload)!r}: {error}", AGAIN) from error


def _safe_path(member: tarfile.TarInfo, links: Set[str]) -> str:
    name = member.name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise guard_refused(f"payload path leads outside: {name!r}", "build the bundle again")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise guard_refused(
            f"payload member is no file, folder or symbolic link: {name!r}",
            "build the bundle again",
        )
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    # A file below a link, or over one, would be written wherever the link leads.
    if any(path in links for path in above):
        raise guard_refused(f"payload path goes through a link: {name!r}", "build the bundle again")
    if member.issym():
        target = member.linkname
        within = os.path.normpath("/".join([*parts[:-1], target]))
        if target.startswith("/") or within.split("/")[0] == "..":
            raise guard_refused(
                f"payload link leads outside: {name!r} to {target!r}", "build the bundle again"
            )
    return "/".join(parts)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, str(target))
        return
    source = archive.extractfile(member)
    assert source is not None  # a regular file always has one
    with source, open(str(target), "xb") as sink:
        shutil.copyfileobj(source, sink, CHUNK_BYTES)
    os.chmod(str(target), 0o755 if member.mode & stat.S_IXUSR else 0o644)


def _compare_payload(payload: str, expected: str) -> None:
    if not os.path.isabs(payload):
        raise usage(f"request.payload: expected an absolute path, found {payload!r}")
    if not os.path.isfile(payload):
        raise AgentError("not_found", f"payload is missing: {payload!r}", AGAIN, 3)
    found = sha256_file(payload)
    if found != expected:
        raise guard_refused(
            f"payload hash differs: {payload!r}: expected {expected}, found {found}; "
            "nothing was extracted",
            AGAIN,
        )


def _compare_tree(entries: List[Dict[str, Any]], expected: str) -> None:
    found = tree_sha256(entries)
    if found != expected:
        raise evidence_mismatch(
            f"payload tree differs: expected {expected}, found {found} of {len(entries)} files",
            "build the bundle again",
        )
    if not any(str(entry["path"]).startswith("project/") for entry in entries):
        raise guard_refused("payload holds no folder 'project'", "build the bundle again")


def _publish(fresh: Path, bundle: Path, entries: List[Dict[str, Any]]) -> List[str]:
    """Make the checked tree visible; an older copy of it is repaired file by file.

    A trainer may be working in the older copy: its open files stay, and what it added stays too.
    """
    if not bundle.exists():
        os.rename(str(fresh), str(bundle))
        sync_folder(bundle.parent)
        return []
    restored = _changed(bundle, entries)
    for path in restored:
        target = bundle / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(str(target))
        _make_folder(bundle, target.parent)
        os.replace(str(fresh / path), str(target))
    return restored


def _make_folder(base: Path, folder: Path) -> None:
    """Real folders all the way down from `base`: what stands in their place is removed."""
    current = base
    for part in folder.relative_to(base).parts:
        current = current / part
        if current.is_symlink() or current.is_file():
            current.unlink()
        if not current.exists():
            current.mkdir()


def _changed(bundle: Path, entries: List[Dict[str, Any]]) -> List[str]:
    """Paths among the entries that are no longer as listed; other files don't count."""
    found = []
    for entry in entries:
        path = str(entry["path"])
        inside = _folders_are_real(bundle, path)
        if inside and os.path.lexists(str(bundle / path)):
            with contextlib.suppress(AgentError):
                found.append(file_entry(bundle, path))
    return [item["path"] for item in differences(entries, found)]


def _folders_are_real(bundle: Path, path: str) -> bool:
    parts = path.split("/")[:-1]
    folders = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return all(
        os.path.isdir(str(bundle / folder)) and not os.path.islink(str(bundle / folder))
        for folder in folders
    )


def _switch_link(layout: Layout, bundle: Path) -> None:
    link = layout.project
    if link.exists() and not link.is_symlink():
        raise guard_refused(
            f"not a link of ours: {str(link)!r}: expected a link or nothing",
            "move that folder away",
        )
    temporary = link.parent / ".project.new"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Relative, so that the data root may be moved or mounted elsewhere.
    os.symlink(os.path.relpath(str(bundle / "project"), str(link.parent)), str(temporary))
    os.replace(str(temporary), str(link))
    sync_folder(link.parent)


def _manifest(layout: Layout, tree: str) -> Path:
    return layout.bundles / f"{layout.bundle(tree).name}.manifest.json"


def _field(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise usage(f"request.{name}: expected text, found {value!r}")
    if name.endswith("_sha256") and not SHA256_PATTERN.fullmatch(value):
        raise usage(f"request.{name}: expected 64 hexadecimal digits, found {value!r}")
    return value
