"""A store in a folder: on this machine, or on a disk that several machines mount."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from experiment.errors import EvidenceMismatch, NotFound
from experiment.results.store_keys import digest_key
from remote.agent.files import CHUNK_BYTES, sha256_file, sync_folder, write_atomic


class FolderStore:
    """Contents as read-only files `sha256/ab/<digest>`, documents beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = str(self.root)

    def put_file(self, path: Path, sha256: str) -> str:
        key = digest_key(sha256)
        kept = self.root / key
        if kept.is_file() and sha256_file(kept) == sha256:
            return key
        _copy_hashed(path, kept, sha256, "store refused")
        found = sha256_file(kept)
        if found != sha256:
            raise EvidenceMismatch(
                "read back differently",
                str(kept),
                expected=sha256,
                found=found,
                hint="check the disk of the store, then repeat",
            )
        return key

    def get_file(self, key: str, path: Path) -> None:
        kept = self.root / key
        if not kept.is_file():
            raise NotFound("not in the store", str(kept), exit_code=1)
        _copy_hashed(kept, path, key.rsplit("/", 1)[-1], "content damaged")

    def has(self, key: str) -> bool:
        return (self.root / key).is_file()

    def put_document(self, key: str, data: bytes) -> None:
        write_atomic(self.root / key, data)
        if (self.root / key).read_bytes() != data:
            raise EvidenceMismatch(
                "read back differently", str(self.root / key), hint="check the disk of the store"
            )

    def get_document(self, key: str) -> bytes:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError as error:
            raise NotFound("not in the store", str(self.root / key), exit_code=1) from error


def _copy_hashed(source: Path, target: Path, sha256: str, what: str) -> None:
    """Copy in chunks, hash in the same pass, and rename only when the digest is the expected one.

    Raises:
        EvidenceMismatch: another digest; `target` is untouched.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".part-", dir=target.parent)
    digest = hashlib.sha256()
    try:
        with os.fdopen(handle, "wb") as sink, source.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fchmod(sink.fileno(), 0o644)
            os.fsync(sink.fileno())
        if digest.hexdigest() != sha256:
            raise EvidenceMismatch(what, str(source), expected=sha256, found=digest.hexdigest())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
