"""Results by digest: what a store is, which one a contract names, and how a run goes in and out.

Keys: `sha256/ab/<digest>` for contents (`ab` = the digest's first two characters) and
`runs/<job>/<run_id>.json` for a run's index, which lists path, bytes, digest and exec bit, or link
target, of every file in the results folder. The index is written last: a run that has one is whole.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from experiment.errors import ContractInvalid, EvidenceMismatch, GuardRefused, NotFound
from experiment.evidence.seal import sealable_entries
from experiment.paths import Home
from experiment.results.folder_store import FolderStore
from experiment.results.store_keys import digest_key, index_key
from remote.agent.files import canonical_json, sha256_bytes

WORKERS = 4
INDEX_VERSION = 1
T = TypeVar("T")


class Store(Protocol):
    """A place that keeps contents under their digest, and small documents under a name."""

    url: str

    def put_file(self, path: Path, sha256: str) -> str:
        """Keep a file's bytes, read them back and hash them; returns the key.

        What is there already is read back too, and replaced if it is damaged.

        Raises:
            EvidenceMismatch: the file, or what was read back, has another digest.
            HostUnreachable: the store does not answer (exit 1; the call can be repeated).
        """

    def get_file(self, key: str, path: Path) -> None:
        """Write the content under a digest key to `path`, hashed on the way, atomically.

        Raises:
            NotFound: no such key. EvidenceMismatch: the content has another digest.
        """

    def has(self, key: str) -> bool:
        """Whether something is kept under the key."""

    def put_document(self, key: str, data: bytes) -> None:
        """Write a small document under a name, over an older one, and read it back."""

    def get_document(self, key: str) -> bytes:
        """The document under a name. Raises NotFound."""


def open_store(url: str | None, base: Path, home: Home) -> Store:
    """The store that a contract names.

    Args:
        url: None for the home's folder store; a folder (relative to `base`, or `file://…`); or
            `s3://bucket/prefix`.
        base: the folder of the contract.

    Raises:
        ContractInvalid: a URL of another kind, or without a bucket.
    """
    if url is None:
        return FolderStore(home.store)
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from experiment.results.s3_store import S3Store  # boto3 takes 0.3 s to load

        return S3Store.open(url)
    if parts.scheme == "file" and not parts.netloc:
        return FolderStore(Path(parts.path))
    if "://" in url or not url.strip():
        raise ContractInvalid(
            "store not understood",
            repr(url),
            expected="a folder, or s3://bucket/prefix",
            hint="change `store` in the contract",
        )
    return FolderStore((base / Path(url).expanduser()).absolute())


def store_results(results_dir: Path, store: Store, job: str, run_id: str) -> dict[str, Any]:
    """Keep every file of a results folder by digest, and last its index. Repeatable.

    Returns:
        `{"stored": True, "url", "files", "bytes", "index_key", "index_sha256"}`; links count as
        files, bytes are those of the folder (contents that occur twice are kept once).

    Raises:
        NotFound: no such folder. GuardRefused: a file that can't be kept.
        EvidenceMismatch, HostUnreachable: as `Store.put_file`; a repeat goes on.
    """
    if not results_dir.is_dir():
        raise NotFound("store refused", str(results_dir), expected="a results folder")
    entries = sealable_entries(results_dir)
    for entry in entries:
        _check_path(entry)
    paths = {entry["sha256"]: entry["path"] for entry in entries if "sha256" in entry}
    _each(paths.items(), lambda item: store.put_file(results_dir / item[1], item[0]))
    index = canonical_json(
        {"schema_version": INDEX_VERSION, "job": job, "run_id": run_id, "files": entries}
    )
    store.put_document(index_key(job, run_id), index)
    return {
        "stored": True,
        "url": store.url,
        "files": len(entries),
        "bytes": sum(entry.get("bytes", 0) for entry in entries),
        "index_key": index_key(job, run_id),
        "index_sha256": sha256_bytes(index),
    }


def fetch_results(store: Store, job: str, run_id: str, dest: Path) -> list[dict[str, Any]]:
    """Restore a run's results folder from the store; every file is hashed while it is written.

    Args:
        dest: a folder that is absent or empty, or one that an earlier, interrupted call left.

    Returns:
        The index's entries, sorted by path.

    Raises:
        NotFound: no such run in the store (exit 1).
        EvidenceMismatch: a content is damaged, or `dest` holds something else already.
        GuardRefused: an index whose paths lead outside `dest`.
    """
    entries = read_index(store.get_document(index_key(job, run_id)), f"{job}/{run_id}")
    wanted = {entry["path"] for entry in entries}
    dest.mkdir(parents=True, exist_ok=True)
    present = [found["path"] for found in sealable_entries(dest)]
    strange = [path for path in present if path not in wanted]
    if strange:
        raise EvidenceMismatch(
            "fetch refused",
            str(dest),
            expected="an empty folder",
            found=strange[0],
            hint="name another folder",
        )
    files = [entry for entry in entries if "sha256" in entry]
    _each(files, lambda entry: _restore(store, entry, dest))
    # Links last, so that no file is ever written through one.
    for entry in entries:
        if "link" in entry:
            target = dest / entry["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(entry["link"])
    return entries


def read_index(data: bytes, name: str) -> list[dict[str, Any]]:
    """The entries of a run's index, none of which leads outside its folder.

    Raises:
        EvidenceMismatch: no index that this version reads. GuardRefused: a path leads outside.
    """
    try:
        index = json.loads(data.decode("utf-8"))
        if index["schema_version"] != INDEX_VERSION:
            raise ValueError(f"schema_version {index['schema_version']}")
        entries = [dict(entry) for entry in index["files"]]
        for entry in entries:
            if "link" not in entry:
                digest_key(entry["sha256"])
            if not isinstance(entry["path"], str):
                raise ValueError(f"path {entry['path']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceMismatch(
            "index unreadable",
            name,
            expected="an index of a run",
            found=f"{type(error).__name__}: {error}",
        ) from error
    for entry in entries:
        _check_path(entry)
    return entries


def _restore(store: Store, entry: dict[str, Any], dest: Path) -> None:
    target = dest / entry["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    store.get_file(digest_key(entry["sha256"]), target)
    target.chmod(0o755 if entry.get("mode") == "755" else 0o644)


def _check_path(entry: dict[str, Any]) -> None:
    path = entry["path"]
    inside = path == posixpath.normpath(path) and _is_inside(path)
    if inside and "link" in entry:
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry["link"]))
        inside = not os.path.isabs(entry["link"]) and _is_inside(aim, itself=True)
    if not inside:
        raise GuardRefused(
            "results refused",
            repr(path),
            expected="a path, and a link's target, inside the results folder",
            found=repr(entry.get("link", path)),
            hint="remove it from the results",
        )


def _is_inside(path: str, itself: bool = False) -> bool:
    if path == ".":
        return itself
    return not path.startswith("/") and path.split("/")[0] != ".." and "\0" not in path


def _each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Act on all items, a few at a time; the first failure is raised, the rest not begun."""
    todo: Sequence[T] = list(items)
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        futures = [pool.submit(act, item) for item in todo]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
