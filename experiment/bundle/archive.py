"""A deterministic tar.gz: the same entries give the same bytes, whoever writes them and when.

Owner 0, no owner names, mtime 0, modes 644 and 755, PAX headers only where a name needs one; a
gzip header without time or name. ISA-L's deflate comes inside the `isal` wheel, so that its output
does not depend on the zlib of this machine; blocks of one size, so that it does not depend on how
the pieces came in.
"""

from __future__ import annotations

import hashlib
import tarfile
from typing import BinaryIO

from isal import isal_zlib

LEVEL = 1
BLOCK_BYTES = 1 << 20
# magic, deflate, no flags, mtime 0, no extra flags, unknown system
GZIP_HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
RECORD = tarfile.RECORDSIZE
SECTOR = tarfile.BLOCKSIZE


class TarGz:
    """Writes one archive to a stream and hashes it on the way.

    For each file `begin_file`, the content by `write`, then `end_file`; `link` for a link;
    `finish` at the end, after which `sha256` and `size` are those of the archive.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._deflate = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS)
        self._pending = bytearray()
        self._crc = 0
        self._plain = 0
        self._left = 0
        self.size = 0
        self._emit(GZIP_HEADER)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def begin_file(self, path: str, size: int, executable: bool) -> None:
        """Announce a file of exactly `size` bytes."""
        info = _header(path)
        info.size = size
        info.mode = 0o755 if executable else 0o644
        self._add(_encoded(info))
        self._left = size

    def write(self, data: bytes) -> None:
        """The next bytes of the file.

        Raises:
            ValueError: more than were announced.
        """
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more bytes than announced")
        self._add(data)

    def end_file(self) -> None:
        """Raises:
        ValueError: fewer bytes than announced."""
        if self._left:
            raise ValueError(f"{self._left} bytes fewer than announced")
        self._add(b"\0" * (-self._plain % SECTOR))

    def file(self, path: str, data: bytes, executable: bool = False) -> None:
        """A whole file."""
        self.begin_file(path, len(data), executable)
        self.write(data)
        self.end_file()

    def link(self, path: str, target: str) -> None:
        """A symbolic link, kept as it is."""
        info = _header(path)
        info.type = tarfile.SYMTYPE
        info.linkname = target
        info.mode = 0o777
        self._add(_encoded(info))

    def finish(self) -> None:
        """The end of the tar and of the gzip stream."""
        self._add(b"\0" * (2 * SECTOR))
        self._add(b"\0" * (-self._plain % RECORD))
        self._emit(self._deflate.compress(bytes(self._pending)))
        self._pending.clear()
        self._emit(self._deflate.flush())
        self._emit(
            self._crc.to_bytes(4, "little") + (self._plain % (1 << 32)).to_bytes(4, "little")
        )

    def _add(self, data: bytes) -> None:
        self._crc = isal_zlib.crc32(data, self._crc)
        self._plain += len(data)
        self._pending += data
        while len(self._pending) >= BLOCK_BYTES:
            self._emit(self._deflate.compress(bytes(self._pending[:BLOCK_BYTES])))
            del self._pending[:BLOCK_BYTES]

    def _emit(self, data: bytes) -> None:
        if data:
            self._stream.write(data)
            self._digest.update(data)
            self.size += len(data)


def _header(path: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def _encoded(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
