"""Step `archive`: stream the run as a deterministic tar.gz to stdout, hashing in the same pass.

The archive holds the inventory first and then exactly its files, sorted by path, without times,
owners or other mode bits: the same run gives the same bytes with the same zlib. Each file is
re-hashed while it passes; one that is no longer what the inventory says spoils the archive, and
the answer says so. Nothing is written on the host.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any, Callable, Dict

from remote.agent.errors import AgentError, evidence_mismatch
from remote.agent.files import CHUNK_BYTES, read_json, sha256_bytes
from remote.agent.layout import Layout

Sink = Callable[[bytes], Any]

# Weights hardly shrink and logs shrink well at any level; the fastest one keeps a link busy.
LEVEL = 1
# Magic, deflate, no flags, no time, fastest, Unix.
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03"
BLOCK = tarfile.BLOCKSIZE


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `{run_root, inventory_sha256}`; the archive goes to stdout.

    Evidence `{bytes, sha256 (of the archive), files (without the inventory)}`.

    Raises:
        AgentError: evidence_mismatch when the inventory or a file is not what was collected;
            remote_step_failed when the reader went away.
    """
    root = layout.run_root(request.get("run_root"))
    try:
        return write_archive(
            root.path, root.inventory, str(request.get("inventory_sha256")), sys.stdout.buffer.write
        )
    except BrokenPipeError:
        # Python would try to flush stdout once more at exit and print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise AgentError(
            "remote_step_failed", "archive: the reader went away", "collect again"
        ) from None
    finally:
        sys.stdout.flush()


def write_archive(base: Path, inventory: Path, inventory_sha256: str, sink: Sink) -> dict[str, Any]:
    """Write the archive of what the inventory lists into `sink`; evidence as `run`.

    Raises:
        AgentError: evidence_mismatch, naming the file.
    """
    try:
        data = inventory.read_bytes()
    except FileNotFoundError:
        raise evidence_mismatch(
            f"inventory is missing: {str(inventory)!r}", "collect first"
        ) from None
    if sha256_bytes(data) != inventory_sha256:
        raise evidence_mismatch(
            f"inventory was changed: {str(inventory)!r}: expected {inventory_sha256}, "
            f"found {sha256_bytes(data)}",
            "collect again",
        )
    entries = list(read_json(inventory)["files"])
    stream = GzipStream(sink)
    _add_header(stream, {"path": inventory.name, "bytes": len(data), "mode": "644"})
    stream.write(data + _padding(len(data)))
    for entry in sorted(entries, key=lambda item: str(item["path"])):
        _add(stream, base, entry)
    stream.write(b"\0" * (2 * BLOCK))
    stream.close()
    return {"bytes": stream.bytes, "sha256": stream.sha256, "files": len(entries)}


class GzipStream:
    """A gzip writer without a time or name in its header, which hashes what it writes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self._crc = 0
        self._size = 0
        self.bytes = 0
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._emit(GZIP_HEADER)

    def write(self, data: bytes) -> None:
        """Compress and pass on."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._emit(self._deflate.compress(data))

    def close(self) -> None:
        """End the stream; the sink stays open."""
        self._emit(self._deflate.flush())
        self._emit(struct.pack("<LL", self._crc, self._size & 0xFFFFFFFF))

    @property
    def sha256(self) -> str:
        """Digest of the compressed bytes so far."""
        return self._digest.hexdigest()

    def _emit(self, data: bytes) -> None:
        if data:
            self._digest.update(data)
            self.bytes += len(data)
            self._sink(data)


def _add(stream: GzipStream, base: Path, entry: Dict[str, Any]) -> None:
    path = str(entry["path"])
    if path.startswith("/") or ".." in path.split("/"):
        raise evidence_mismatch(
            f"inventory names a path outside the run: {path!r}", "collect again"
        )
    if "link" in entry:
        if not os.path.islink(str(base / path)) or os.readlink(str(base / path)) != entry["link"]:
            raise _changed(path, str(entry["link"]), "another link or none")
        _add_header(stream, entry)
        return
    _add_header(stream, entry)
    digest = hashlib.sha256()
    size = 0
    try:
        with open(str(base / path), "rb") as handle:
            for chunk in iter(lambda: handle.read(CHUNK_BYTES), b""):
                digest.update(chunk)
                size += len(chunk)
                stream.write(chunk)
    except FileNotFoundError:
        raise _changed(path, str(entry["sha256"]), "no file") from None
    if size != entry["bytes"] or digest.hexdigest() != entry["sha256"]:
        raise _changed(path, f"{entry['bytes']} bytes, {entry['sha256']}", f"{size} bytes")
    stream.write(_padding(size))


def _add_header(stream: GzipStream, entry: Dict[str, Any]) -> None:
    info = tarfile.TarInfo(str(entry["path"]))
    if "link" in entry:
        info.type = tarfile.SYMTYPE
        info.linkname = str(entry["link"])
        info.mode = 0o777
    else:
        info.size = int(entry["bytes"])
        info.mode = 0o755 if entry.get("mode") == "755" else 0o644
    stream.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))


def _padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def _changed(path: str, expected: str, found: str) -> AgentError:
    return evidence_mismatch(
        f"file changed after it was collected: {path!r}: expected {expected}, found {found}",
        "see that the run has ended, then collect again",
    )
