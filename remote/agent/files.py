"""Atomic files, digests and the one JSON form that is hashed; used on both sides of the wire."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Iterator, Union

PathLike = Union[str, "os.PathLike[str]"]

CHUNK_BYTES = 1 << 20


def canonical_json(value: Any) -> bytes:
    """The bytes that are hashed and signed: sorted keys, no spaces, UTF-8, no NaN.

    Raises:
        ValueError: NaN or an infinity in the value, or text that is not valid Unicode.
        TypeError: something that JSON does not have.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def sha256_bytes(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: PathLike) -> str:
    """Lower-case hexadecimal SHA-256 of a file's bytes, read in chunks.

    Raises:
        OSError: the file can't be read.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while True:
            chunk = handle.read(CHUNK_BYTES)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def write_atomic(path: PathLike, data: bytes, mode: int = 0o644) -> None:
    """Write a whole file, durably: a reader sees the old bytes or the new ones, never a part.

    The folder is created when it is missing. `mode` is the file's mode whatever the umask says.

    Raises:
        OSError: the file can't be written; the old one is then untouched.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=str(target.parent))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(name, str(target))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_folder(target.parent)


def sync_folder(folder: PathLike) -> None:
    """Make a rename in the folder survive a power cut, where the file system can."""
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        # Some network file systems refuse fsync on folders; the rename itself is done.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: PathLike, value: Any, mode: int = 0o644) -> None:
    """Write a value as indented JSON (sorted keys, a final newline), atomically.

    Raises:
        ValueError, TypeError: as `canonical_json`.
        OSError: as `write_atomic`.
    """
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode("utf-8"), mode)


def read_json(path: PathLike) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON in UTF-8; the message names the file.
    """
    data = Path(path).read_bytes()
    try:
        return json.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}") from error


def read_json_or_none(path: PathLike) -> Any:
    """The value in a JSON file, or None when the file is missing or not whole JSON.

    For markers: a damaged one counts as absent, so that partial state is never taken for complete.
    """
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


@contextlib.contextmanager
def hashing_file(path: PathLike) -> Iterator[Any]:
    """Open a file for reading together with a running SHA-256: yields `(read, digest)`.

    `read(n)` returns bytes and feeds the digest in the same pass.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as handle:

        def read(size: int) -> bytes:
            chunk = handle.read(size)
            digest.update(chunk)
            return chunk

        yield read, digest
