"""What a local instance is made of: base environment, environment variables, GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.errors import NotFound
from experiment.providers.local_folder import InstanceFolder

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches package indexes and hubs; a box that lacks them could install nothing.
PASSED_PREFIXES = ("PIP_",)
PASSED = frozenset(
    [
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HF_ENDPOINT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
        *("LANG", "LC_ALL", "TZ"),
    ]
)
GPU_SECONDS = 20.0


def base_environment(repository: Path, environ: Mapping[str, str]) -> Path:
    """The folder whose `bin/python3` the instance offers, as a rented box has one with torch.

    `$CHARTER_LOCAL_BASE`, else `.venv-host` beside the code, else the running interpreter's.

    Raises:
        NotFound: the named folder has no `bin/python3`.
    """
    given = environ.get("CHARTER_LOCAL_BASE")
    if given:
        base = Path(given).expanduser().absolute()
        if not (base / "bin" / "python3").exists():
            raise NotFound(
                "base environment has no Python",
                f"CHARTER_LOCAL_BASE={given}",
                expected="a folder with bin/python3",
                hint="name a virtual environment",
                exit_code=127,
            )
        return base
    beside = repository / ".venv-host"
    return beside if (beside / "bin" / "python3").exists() else Path(sys.prefix)


def host_environment(
    folder: InstanceFolder, name: str, token: str, base: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment of everything that runs on the instance; nothing else gets in."""
    passed = {
        key: value
        for key, value in environ.items()
        if (key in PASSED or key.startswith(PASSED_PREFIXES)) and "\n" not in value
    }
    config = Path(environ.get("HOME", "/nonexistent")) / ".config" / "pip" / "pip.conf"
    if config.exists():
        passed.setdefault("PIP_CONFIG_FILE", str(config))  # HOME is another one there
    passed.setdefault("LANG", "C.UTF-8")
    return {
        **passed,
        "HOME": str(folder.home),
        "PATH": f"{base / 'bin'}:{SYSTEM_PATH}",
        "CHARTER_ROLE": "host",
        "CHARTER_INSTANCE": name,
        "CHARTER_INSTANCE_TOKEN": token,
        "CHARTER_BASE_BIN": str(base / "bin"),
    }


def list_gpus(environ: Mapping[str, str]) -> dict[str, Any]:
    """`{name, count, memory_mib}` of this machine's first kind of GPU; count 0 without any."""
    nothing = {"name": "none", "count": 0, "memory_mib": 0}
    tool = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if tool is None:
        return nothing
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            query, capture_output=True, text=True, timeout=GPU_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return nothing
    rows = [line.rpartition(", ") for line in told.stdout.splitlines() if ", " in line]
    if told.returncode or not rows or not rows[0][2].isdigit():
        return nothing
    return {"name": rows[0][0], "count": len(rows), "memory_mib": int(rows[0][2])}
