"""Step `hello`: who answers, on which host, and which data root it is."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from typing import Any

from remote.agent.answer import PROTOCOL
from remote.agent.files import write_atomic
from remote.agent.layout import Layout
from remote.agent.locks import locked
from remote.agent.pack import agent_sha256
from remote.agent.process import boot_id, machine_id


def run(_request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Evidence `{protocol, agent_sha256, python, executable, platform, boot_id, machine_id,
    data_root, marker, uid}`. Creates the data root and its marker when they are missing.

    Raises:
        OSError: the data root can't be written.
    """
    return {
        "protocol": PROTOCOL,
        "agent_sha256": agent_sha256(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "boot_id": boot_id(),
        "machine_id": machine_id(),
        "data_root": os.path.realpath(str(layout.data_root)),
        "marker": data_root_marker(layout),
        "uid": os.getuid(),
    }


def data_root_marker(layout: Layout) -> str:
    """The data root's own name, made once: a wiped or swapped disk has another one."""
    with locked(layout.lock("marker"), 30.0, "the data root's marker"):
        if layout.marker.exists():
            known = layout.marker.read_text(encoding="ascii").strip()
            if known:
                return known
        fresh = str(uuid.uuid4())
        write_atomic(layout.marker, f"{fresh}\n".encode("ascii"))
        return fresh
