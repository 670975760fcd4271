"""`agent.pyz` from the package's own sources: the same sources give the same bytes everywhere.

Stored, not compressed: zlib's output differs between Python builds. Runs from a clone as well as
from inside a packed agent.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

from remote.agent.files import sha256_bytes, sha256_file, write_atomic
from remote.agent.layout import Layout

# Python older than 3.8 must get one line and an exit code, so this file is valid syntax for it.
MAIN = b'''"""The packed agent's door; see remote/agent/__main__.py."""
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("error: agent: expected Python 3.8 or newer, found %s\\n" % sys.version)
    sys.exit(69)

from remote.agent.__main__ import main

sys.exit(main())
'''

PACKED_SUFFIXES = (".py", ".json")
# The oldest moment that a zip archive can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)


def build_agent() -> bytes:
    """The bytes of `agent.pyz`: `__main__.py`, and `remote/agent` with its Python and JSON files.

    Raises:
        OSError: the sources can't be read.
    """
    archive = running_archive()
    if archive is not None:
        return archive.read_bytes()
    members = {"__main__.py": MAIN, "remote/__init__.py": b""}
    members.update(_sources())
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as packed:
        for name in sorted(members):
            packed.writestr(_member(name), members[name])
    return buffer.getvalue()


def agent_sha256() -> str:
    """The digest of the agent that runs this, or would be packed from this clone."""
    archive = running_archive()
    return sha256_file(archive) if archive is not None else sha256_bytes(build_agent())


def running_archive() -> Path | None:
    """The `agent.pyz` that this code was imported from, or None when it is a clone."""
    archive = getattr(_loader(), "archive", None)
    return Path(os.path.abspath(str(archive))) if archive else None


def self_argv(layout: Layout) -> list[str]:
    """The start of a command line that runs this very agent again, whatever happens to the clone.

    From a clone the agent is packed into the data root first.

    Raises:
        OSError: it can't be written there.
    """
    archive = running_archive()
    if archive is None:
        packed = build_agent()
        archive = layout.agent(sha256_bytes(packed))
        if not archive.exists() or archive.read_bytes() != packed:
            write_atomic(archive, packed)
    return [sys.executable, "-I", str(archive)]


def _loader() -> Any:
    return globals().get("__loader__")


def _sources() -> dict[str, bytes]:
    folder = Path(__file__).resolve().parent
    return {
        f"remote/agent/{path.name}": path.read_bytes()
        for path in folder.iterdir()
        if path.suffix in PACKED_SUFFIXES and path.is_file()
    }


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, EPOCH)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info
