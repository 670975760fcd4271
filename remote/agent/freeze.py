"""Program `freeze`: what a Python is and which packages it sees, as one JSON object on stdout.

Run by the Python in question (`PYTHON -I agent.pyz freeze`), so that it speaks for itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any, Dict, List

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
    """Versions of the distributions on this Python's path; the first of a name counts."""
    found: Dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # A half-removed distribution has no name.
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), str(distribution.version))
    return found


def freeze_lines(found: dict[str, str]) -> list[str]:
    """`name==version` lines, sorted."""
    return [f"{name}=={found[name]}" for name in sorted(found)]


def packages_sha256(found: dict[str, str]) -> str:
    """The digest that names a set of packages."""
    return sha256_bytes(canonical_json(freeze_lines(found)))
