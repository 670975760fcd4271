"""Step `probe`: the full preflight. Runs the bundle's probes in the job's environment.

A probe is one file, `.autodl/probes/NAME.py REQUEST.json RESPONSE.json`, that imports nothing of
ours. It reads its arguments from the request and writes
`{"checks": [{name, status PASS|FAIL|SKIP, found, expected, fix}], "packages": {name: version}}`.
A probe that writes no such answer is a failed check, never a passed one.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping

from remote.agent.errors import AgentError, usage
from remote.agent.files import read_json_or_none, write_json
from remote.agent.job_command import output_tail, run_command
from remote.agent.job_environment import job_environment
from remote.agent.layout import Layout

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*")
STATUSES = ("PASS", "FAIL", "SKIP")
TIMEOUT_SECONDS = 300.0
TAIL_BYTES = 2000


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Request `python`, `project_dir`, `probes` (names), `args` ({name: {…}}), optional
    `timeout_seconds` (each), `run_root`, `env`, `model_path`.

    Evidence, also written to the run root's `preflight.json`: `{schema_version, status PASS|FAIL,
    python, checks: [{probe, name, status, found, expected, fix}], packages, model}`. FAIL is an
    answer; the caller refuses.

    Raises:
        AgentError: usage for a wrong field; not_found (exit 3) for a missing project folder.
    """
    names = request.get("probes")
    if not isinstance(names, list) or not all(
        isinstance(name, str) and NAME_PATTERN.fullmatch(name) for name in names
    ):
        raise usage(f"request.probes: expected a list of probe names, found {names!r}")
    project = Path(str(request.get("project_dir") or layout.project))
    if not project.is_dir():
        raise AgentError(
            "not_found", f"project folder is missing: {str(project)!r}", "unpack first", 3
        )
    root = layout.run_root(request.get("run_root"))
    root.path.mkdir(parents=True, exist_ok=True)
    environment = job_environment({**request, "cwd": str(project)}, layout, root.path)
    checks: List[Dict[str, Any]] = []
    packages: Dict[str, Any] = {}
    for name in names:
        answer = _run_probe(name, request, project, environment)
        checks += [{"probe": name, **check} for check in answer["checks"]]
        packages.update(answer["packages"])
    failed = any(check["status"] == "FAIL" for check in checks)
    report = {
        "schema_version": 1,
        "status": "FAIL" if failed else "PASS",
        "python": request.get("python"),
        "checks": checks,
        "packages": packages,
        "model": request.get("model_path"),
    }
    write_json(root.preflight, report)
    return report


def _run_probe(
    name: str, request: Mapping[str, Any], project: Path, environment: Mapping[str, str]
) -> Dict[str, Any]:
    program = project / ".autodl" / "probes" / f"{name}.py"
    if not program.is_file():
        return _failed(name, "the bundle does not carry it", str(program), "bundle again")
    limit = float(request.get("timeout_seconds") or TIMEOUT_SECONDS)
    with tempfile.TemporaryDirectory(prefix="charter-probe-") as folder:
        asked, answered, log = (Path(folder) / part for part in ("in.json", "out.json", "log"))
        write_json(asked, (request.get("args") or {}).get(name) or {})
        argv = [str(request.get("python") or "python3"), str(program), str(asked), str(answered)]
        try:
            done = run_command(argv, str(project), environment, log, limit)
        except OSError as error:
            return _failed(name, str(error), "a Python that starts", "build the environment")
        if done.exit_code is None:
            found = f"no answer within {limit:g} s"
            return _failed(name, found, "an answer", "look for a hang in the environment")
        answer = _answer(read_json_or_none(answered))
        if answer is None:
            found = f"exit code {done.exit_code}, no answer: {output_tail(log, TAIL_BYTES).strip()}"
            return _failed(name, found, "an answer", "see the probe's output")
        return answer


def _answer(found: Any) -> Dict[str, Any] | None:
    """The probe's answer when it is whole: at least one check, each with a known status."""
    if not isinstance(found, dict):
        return None
    checks = found.get("checks")
    packages = found.get("packages") or {}
    if not isinstance(checks, list) or not checks or not isinstance(packages, dict):
        return None
    if not all(isinstance(item, dict) and item.get("status") in STATUSES for item in checks):
        return None
    return {"checks": checks, "packages": packages}


def _failed(name: str, found: str, expected: str, fix: str) -> Dict[str, Any]:
    check = {"name": name, "status": "FAIL", "found": found, "expected": expected, "fix": fix}
    return {"checks": [check], "packages": {}}
