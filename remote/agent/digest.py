"""Step `digest`: sizes and SHA-256 of files, read back from the disk."""

from __future__ import annotations

import os
from typing import Any

from remote.agent.errors import usage
from remote.agent.files import sha256_file
from remote.agent.layout import Layout


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `paths`: absolute paths inside the data root. Evidence
    `{files: {path: {bytes, sha256} or null}}`, null for what is absent or no file.

    Raises:
        AgentError: usage when `paths` is no list of texts; guard_refused outside the data root.
        OSError: a file that is there and can't be read.
    """
    paths = request.get("paths")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise usage(f"request.paths: expected a list of paths, found {paths!r}")
    files: dict[str, dict[str, Any] | None] = {}
    for path in paths:
        real = str(layout.inside(path))
        if not os.path.isfile(real):
            files[path] = None
            continue
        files[path] = {"bytes": os.path.getsize(real), "sha256": sha256_file(real)}
    return {"files": files}
