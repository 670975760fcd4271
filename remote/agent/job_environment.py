"""The environment that a job's own programs get: trainer, probes and verifier alike."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Dict, Mapping

from remote.agent.errors import usage
from remote.agent.files import sha256_bytes
from remote.agent.layout import Layout
from remote.agent.process import DATA_ROOT_TAG

NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What belongs to the login or the controller that happened to start the job, not to the job.
SESSION_PREFIXES = ("SSH_", "CHARTER_", "AUTODL_", "PREFECT_")
# ... but a host's own marks stay: its provider finds its processes by them.
HOST_PREFIXES = ("CHARTER_INSTANCE", "CHARTER_BASE")
SESSION_NAMES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "OLDPWD", "PWD", "TMUX", "STY")


def job_environment(request: Mapping[str, Any], layout: Layout, run_root: Path) -> Dict[str, str]:
    """The names of R1 and R3, the host tags, the job's Python first on PATH, then the contract's.

    A contract's `env` may change the hub settings, but not what says where the run lives.

    Args:
        request: `cwd`, `python`, `model_path`, `runtime_quantization`, `env`, each may be missing.
        run_root: the run's folder, links resolved.

    Raises:
        AgentError: usage, for an `env` that is no mapping of names to texts.
    """
    values = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(HOST_PREFIXES)
        or not (name.startswith(SESSION_PREFIXES) or name in SESSION_NAMES)
    }
    values.update(_hub_settings(layout))
    values["PYTHONUNBUFFERED"] = "1"
    given = checked(request.get("env"), "env")
    values.update(given)
    values.update(_places(request, layout, run_root))
    source = Path(str(request.get("cwd") or layout.project)) / "src"
    if source.is_dir():
        values["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(source), given.get("PYTHONPATH", "")) if part
        )
    python = request.get("python")
    if python:
        values.update(_python_first(str(python), values.get("PATH", os.defpath), layout))
    return values


def checked(given: Any, field: str) -> Dict[str, str]:
    """A mapping of environment names to texts, or nothing.

    Raises:
        AgentError: usage, naming the variable but never its value.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise usage(f"request.{field}: expected names and texts, found {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise usage(f"request.{field}: expected a variable's name, found {name!r}")
        if not isinstance(value, str) or "\0" in value:
            raise usage(
                f"request.{field}.{name}: expected text, found {type(value).__name__}",
                "write the value in quotes",
            )
    return dict(given)


def _hub_settings(layout: Layout) -> Dict[str, str]:
    return {
        "HF_HOME": str(layout.hf_home),
        "HF_HUB_CACHE": str(layout.hf_hub_cache),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "600",
        "HF_HUB_ETAG_TIMEOUT": "120",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _places(request: Mapping[str, Any], layout: Layout, run_root: Path) -> Dict[str, str]:
    values = {
        "AUTODL_JOB_DIR": str(layout.job_dir),
        "AUTODL_RUN_ID": layout.run_id,
        "AUTODL_RUN_ROOT": str(run_root),
        "AUTODL_RUNTIME_QUANTIZATION": str(request.get("runtime_quantization") or "unspecified"),
        "CHARTER_ROLE": "host",
        "CHARTER_JOB": layout.job,
        "CHARTER_RUN_ID": layout.run_id,
        "CHARTER_ATTEMPT": str(layout.attempt),
        DATA_ROOT_TAG: os.path.realpath(str(layout.data_root)),
    }
    if request.get("model_path"):
        values["MODEL_PATH"] = str(request["model_path"])
        values["AGENTICQWEN_MODEL_PATH"] = str(request["model_path"])
    return values


def _python_first(python: str, path: str, layout: Layout) -> Dict[str, str]:
    """PATH on which `python` is the job's own; what `activate` does."""
    folder = os.path.dirname(python)
    values = {"PATH": f"{folder}{os.pathsep}{path}"}
    home = os.path.dirname(folder)
    if os.path.exists(os.path.join(home, "pyvenv.cfg")):
        values["VIRTUAL_ENV"] = home
    elif not os.path.exists(os.path.join(folder, "python")):
        # Debian has python3 only, and commands say `python`. A venv always has the plain name, and
        # would not be recognised through a link; this is the base Python.
        shims = layout.charter / "bin" / sha256_bytes(python.encode("utf-8"))[:12]
        shims.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (shims / "python").symlink_to(python)
        values["PATH"] = f"{shims}{os.pathsep}{values['PATH']}"
    return values
