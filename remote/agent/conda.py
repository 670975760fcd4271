"""Where conda keeps an environment, found without running conda: it may not be on PATH."""

from __future__ import annotations

import os
import sys
from typing import Any, List

from remote.agent.errors import AgentError, usage

CONDA_ROOTS = (
    "/root/miniconda3",
    "/opt/conda",
    "~/miniconda3",
    "~/anaconda3",
    "~/miniforge3",
    "~/.conda",
)


def conda_python(name: Any) -> str:
    """The Python of the conda environment with that name; `base` is conda's own.

    Raises:
        AgentError: usage when it is no name; remote_step_failed, exit 127, when there is none.
    """
    if not isinstance(name, str) or not name or "/" in name:
        raise usage(f"request.name: expected a conda environment's name, found {name!r}")
    candidates = [
        os.path.join(root, "bin", "python")
        for root in _conda_prefixes()
        if os.path.basename(root) == name
    ]
    for root in _conda_roots():
        inside = root if name == "base" else os.path.join(root, "envs", name)
        candidates.append(os.path.join(inside, "bin", "python"))
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise AgentError(
        "remote_step_failed",
        f"conda environment is missing: {name!r}: looked for {', '.join(candidates)}",
        "create it on the host, or use environment.kind venv",
        127,
    )


def _conda_roots() -> List[str]:
    roots = [os.path.expanduser(root) for root in CONDA_ROOTS]
    prefix = os.environ.get("CONDA_PREFIX")
    return [*([prefix] if prefix else []), sys.prefix, *roots]


def _conda_prefixes() -> List[str]:
    """Environments that conda itself wrote down."""
    try:
        with open(os.path.expanduser("~/.conda/environments.txt"), encoding="utf-8") as lines:
            return [line.strip() for line in lines if line.strip()]
    except OSError:
        return []
