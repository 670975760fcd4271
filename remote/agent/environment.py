"""Step `environment`: the Python that the job runs with, built once and shared by jobs.

A venv on the data disk, keyed by what it is made of, links to the base environment's packages by
a `.pth` file: a venv made from a venv would not see them otherwise. Requirements are installed
only when the job has any. The marker is written last; a folder without it is built anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from remote.agent.answer import STEP_WAIT_SECONDS
from remote.agent.conda import conda_python
from remote.agent.errors import AgentError, guard_refused, usage
from remote.agent.files import (
    canonical_json,
    read_json_or_none,
    sha256_bytes,
    sha256_file,
    write_atomic,
    write_json,
)
from remote.agent.freeze import freeze_lines, packages_sha256
from remote.agent.layout import Layout
from remote.agent.locks import locked
from remote.agent.pack import self_argv

KINDS = ("venv", "conda", "none")
MARKER = ".charter-complete.json"
LINK = "charter-base.pth"
DESCRIBE_SECONDS = 120
BUILD_SECONDS = 600
NO_PYTHON_EXIT = 127


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `{kind: venv|conda|none, name: of the conda environment, requirements: path relative
    to the project, or null}`. `none` uses the base Python as it is; `conda` the named environment's
    Python, and a venv over it when there are requirements.

    Evidence `{kind, python, key (null without a venv), reused, packages_sha256, freeze [lines],
    requirements_installed, base, seconds}`. Also written to the run root as `environment.txt`.

    Raises:
        AgentError: remote_step_failed, exit 127 without a usable Python, exit 1 when pip fails;
            guard_refused for requirements outside the project; not_found when they are missing.
    """
    began = time.monotonic()
    kind = request.get("kind")
    if kind not in KINDS:
        raise usage(f"request.kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    requirements = _requirements(request.get("requirements"), layout)
    base_python = conda_python(request.get("name")) if kind == "conda" else sys.executable
    base = describe(base_python, layout)
    if kind == "none" or (kind == "conda" and requirements is None):
        found, key, reused = base, None, True
    else:
        key = venv_key(base, requirements, layout)
        found, reused = _venv(key, base, requirements, layout)
    lines = freeze_lines(found["packages"])
    text = "".join(f"{line}\n" for line in [f"# {found['version'].splitlines()[0]}", *lines])
    write_atomic(layout.run_root().environment, text.encode("utf-8"))
    return {
        "kind": kind,
        "python": found["executable"],
        "key": key,
        "reused": reused,
        "packages_sha256": packages_sha256(found["packages"]),
        "freeze": lines,
        "requirements_installed": key is not None and requirements is not None,
        "base": base["executable"],
        "seconds": round(time.monotonic() - began, 3),
    }


def still_true(evidence: dict[str, Any], _request: dict[str, Any], layout: Layout) -> bool:
    """Whether that Python is there and sees the same packages."""
    key = evidence["key"]
    if key is not None and read_json_or_none(layout.venv(key) / MARKER) is None:
        return False
    try:
        found = describe(evidence["python"], layout)
    except AgentError:
        return False
    return packages_sha256(found["packages"]) == str(evidence["packages_sha256"])


def describe(python: str, layout: Layout) -> dict[str, Any]:
    """What that Python says of itself; see `freeze.describe`.

    Raises:
        AgentError: exit 127 when it can't be started or is too old.
    """
    argv = [python, *self_argv(layout)[1:], "freeze"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DESCRIBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_python(python, str(error)) from error
    if done.returncode != 0:
        raise _no_python(python, _last_line(done.stderr))
    found: Dict[str, Any] = json.loads(done.stdout.decode("utf-8"))
    return found


def venv_key(base: dict[str, Any], requirements: Path | None, layout: Layout) -> str:
    """What the venv is made of, as 16 hexadecimal digits: the base Python's identity and the bytes
    of the requirements with all files that they name. Requirements that install local folders
    depend on the project too.
    """
    made_of: Dict[str, Any] = {
        "base": [base["executable"], base["version"], base["prefix"]],
        "requirements": [],
    }
    if requirements is not None:
        sources, local = requirement_files(requirements)
        # The names differ between bundles while the bytes don't: only the order counts.
        made_of["requirements"] = [sha256_file(name) for name in sources]
        if local:
            made_of["project"] = os.path.realpath(str(layout.project))
    return sha256_bytes(canonical_json(made_of))[:16]


def requirement_files(path: Path) -> tuple[List[Path], bool]:
    """The requirements file and those that it includes by `-r` or `-c`, in order of appearance;
    and whether something local is installed (`-e`, a path, `file:`).
    """
    found: List[Path] = []
    pending = [path]
    local = False
    while pending:
        current = pending.pop(0)
        if current in found or not current.is_file():
            continue
        found.append(current)
        for line in current.read_text(encoding="utf-8", errors="replace").splitlines():
            include = re.match(r"\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)", line)
            if include:
                pending.append(current.parent / include.group(1))
            elif re.match(r"\s*(?:-e\b|--editable\b|\.|/|file:)|.*@\s*file:", line):
                local = True
    return found, local


def _venv(
    key: str, base: dict[str, Any], requirements: Path | None, layout: Layout
) -> tuple[Dict[str, Any], bool]:
    """The venv's description, and whether it was there."""
    folder = layout.venv(key)
    python = str(folder / "bin" / "python")
    with locked(layout.lock(f"venv/{key}"), STEP_WAIT_SECONDS, f"environment {key}"):
        if read_json_or_none(folder / MARKER) is not None:
            try:
                return describe(python, layout), True
            except AgentError as error:
                # Its base was moved or upgraded away: what is left can't run.
                sys.stderr.write(f"environment {key} is built anew: {error.message}\n")
        shutil.rmtree(str(folder), ignore_errors=True)
        _build(folder, base)
        if requirements is not None:
            _install(python, requirements, base, folder, layout)
        found = describe(python, layout)
        write_json(
            folder / MARKER,
            {"key": key, "python": python, "packages_sha256": packages_sha256(found["packages"])},
        )
        return found, False


def _build(folder: Path, base: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    argv = [str(base["executable"]), "-I", "-m", "venv", "--without-pip", str(folder)]
    code = _logged(argv, log, folder.parent, BUILD_SECONDS, "wb")
    if code != 0:
        raise AgentError(
            "remote_step_failed",
            f"venv can't be made by {base['executable']!r}: exit {code}: {_error_line(log)}",
            "install the module venv for that Python (Debian: python3-venv)",
            NO_PYTHON_EXIT,
        )
    site_packages = next((folder / "lib").glob("python*/site-packages"))
    # addsitedir, unlike a plain path, also honours the base's own .pth files (editable installs).
    lines = [f"import site; site.addsitedir({path!r})\n" for path in base["site_dirs"]]
    write_atomic(site_packages / LINK, "".join(lines).encode("utf-8"))


def _install(
    python: str, requirements: Path, base: dict[str, Any], folder: Path, layout: Layout
) -> None:
    log = folder.parent / f"{folder.name}.log"
    if not base["pip"] and _logged([python, "-I", "-m", "ensurepip"], log, folder, BUILD_SECONDS):
        raise AgentError(
            "remote_step_failed",
            f"pip is missing and ensurepip failed: {_error_line(log)}",
            "install pip for the base Python",
        )
    argv = [python, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    argv += ["--progress-bar", "off", "-r", str(requirements)]
    code = _logged(argv, log, Path(os.path.realpath(str(layout.project))), None, "ab", _pip(layout))
    if code != 0:
        raise AgentError(
            "remote_step_failed",
            f"requirements could not be installed: {requirements.name!r}: exit {code}: "
            f"{_error_line(log)}",
            f"see {log} on the host, correct the requirements, then repeat",
        )


def _pip(layout: Layout) -> Dict[str, str]:
    """pip's environment: its cache and large temporary files go to the data disk, since the
    system disk of rented hosts is small.
    """
    temporary = layout.data_root / ".cache" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    cache = str(layout.data_root / ".cache" / "pip")
    return dict(os.environ, PIP_CACHE_DIR=cache, TMPDIR=str(temporary))


def _logged(
    argv: List[str],
    log: Path,
    cwd: Path,
    timeout: float | None,
    mode: str = "ab",
    env: Dict[str, str] | None = None,
) -> int:
    with open(str(log), mode) as sink:
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=str(cwd),
                timeout=timeout,
                env=env,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            sink.write(f"ERROR: {error}\n".encode("utf-8", "replace"))
            return NO_PYTHON_EXIT


def _error_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR:")] or [
        line for line in lines if "rror" in line
    ]
    chosen = (errors or lines or ["no output"])[0 if errors else -1].strip()[:500]
    # An index address may carry a password.
    return re.sub(r"://[^/\s@]+@", "://***@", chosen)


def _requirements(given: Any, layout: Layout) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise usage(f"request.requirements: expected a path or null, found {given!r}")
    project = os.path.realpath(str(layout.project))
    path = os.path.realpath(os.path.join(project, given))
    if not path.startswith(project + "/"):
        raise guard_refused(
            f"requirements outside the project: {given!r}: expected a path inside it",
            "name a file of the project",
        )
    if not os.path.isfile(path):
        raise AgentError(
            "not_found", f"requirements are missing: {given!r} in {project!r}", "unpack first", 1
        )
    return Path(path)


def _no_python(python: str, why: str) -> AgentError:
    return AgentError(
        "remote_step_failed",
        f"no usable Python: {python!r}: {why}",
        "install Python 3.8 or newer on the host",
        NO_PYTHON_EXIT,
    )


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
