"""Program `freeze`: what a Python is and which packages it sees, as one JSON object on stdout.

Run by the Python in question (`PYTHON -I agent.pyz freeze`), so that it speaks for itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

from remote.agent.files import canonical_json, sha256_bytes


def main(arguments: List[str]) -> int:
    """Print `describe()`; no arguments."""
    del arguments
    sys.stdout.write(json.dumps(describe()))
    return 0


def describe() -> dict[str, Any]:
    """`{executable, version, prefix, site_dirs, packages {name: version}, pip (bool)}` of this
    Python. `site_dirs` are the folders that packages are found in, in their order.
    """
    names = packages()
    return {
        "executable": sys.executable,
        "version": sys.version,
        "prefix": sys.prefix,
        "site_dirs": [
            path
            for path in sys.path
            if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)
        ],
        "packages": names,
        "pip": "pip" in names,
    }


def packages() -> dict[str, str]:
    """Versions of the distributions on this Python's path; the first of a name counts.

    Names and versions stand in the folders' names; reading every METADATA takes ten times longer.
    """
    found: Dict[str, str] = {}
    for folder in sys.path:
        if not os.path.isdir(folder):
            continue
        for entry in sorted(os.listdir(folder)):
            name, version = _distribution(folder, entry)
            if name:
                found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def _distribution(folder: str, entry: str) -> Tuple[str, str]:
    """Name and version of what the entry records; empty when it is no distribution."""
    path = Path(folder, entry)
    name, _, version = entry[: -len(".dist-info")].partition("-")
    # A half-removed distribution has no METADATA.
    if entry.endswith(".dist-info") and version and (path / "METADATA").is_file():
        return name, version
    if entry.endswith(".egg-info"):
        metadata = importlib.metadata.PathDistribution(path).metadata
        return str(metadata["Name"] or ""), str(metadata["Version"] or "")
    return "", ""


def freeze_lines(found: dict[str, str]) -> list[str]:
    """`name==version` lines, sorted."""
    return [f"{name}=={found[name]}" for name in sorted(found)]


def packages_sha256(found: dict[str, str]) -> str:
    """The digest that names a set of packages."""
    return sha256_bytes(canonical_json(freeze_lines(found)))
