"""Step `verify_run`: the run's own verifier, in the job's environment, before packing."""

from __future__ import annotations

import os
from typing import Any, Dict

from remote.agent.errors import AgentError, usage
from remote.agent.files import read_json_or_none, sha256_file
from remote.agent.job_command import output_tail, run_command
from remote.agent.job_environment import job_environment
from remote.agent.layout import Layout

TIMEOUT_SECONDS = 1800.0
TAIL_BYTES = 8192
EXIT_TIMEOUT = 124


def run(request: Dict[str, Any], layout: Layout) -> Dict[str, Any]:
    """Run the contract's verifier command; what it says is evidence, whatever it says.

    Request: `command` (for bash), `cwd`, `python`, `run_root`, `timeout_seconds`, `env`,
    `model_path` (default: what the launch named). Evidence `{command, exit_code, seconds,
    output_tail, output_sha256, log}`; an exit code other than 0 is an answer, not an error.

    Raises:
        AgentError: usage for a wrong field; not_found (exit 3) for a missing folder; timeout (124).
    """
    command = request.get("command")
    if not isinstance(command, str) or not command.strip():
        raise usage(f"request.command: expected a command, found {command!r}")
    cwd = request.get("cwd")
    if not isinstance(cwd, str) or not os.path.isdir(cwd):
        raise AgentError(
            "not_found", f"project folder is missing: {cwd!r}", "unpack the bundle first", 3
        )
    root = layout.run_root(request.get("run_root"))
    if not root.path.is_dir():
        raise AgentError(
            "not_found", f"run root is missing: {str(root.path)!r}", "launch the run first", 3
        )
    limit = float(request.get("timeout_seconds") or TIMEOUT_SECONDS)
    launched = read_json_or_none(root.launch)
    known = launched if isinstance(launched, dict) else {}
    inherited = {name: known.get(name) for name in ("model_path", "runtime_quantization")}
    asked = {name: value for name, value in request.items() if value is not None}
    environment = job_environment({**inherited, **asked}, layout, root.path)
    done = run_command(["bash", "-c", command], cwd, environment, root.verifier_log, limit)
    if done.exit_code is None:
        raise AgentError(
            "timeout",
            f"verifier did not end: {command!r}: expected within {limit:g} s",
            f"read {str(root.verifier_log)!r} on the host, or allow it more time",
            EXIT_TIMEOUT,
        )
    return {
        "command": command,
        "exit_code": done.exit_code,
        "seconds": done.seconds,
        "output_tail": output_tail(root.verifier_log, TAIL_BYTES),
        "output_sha256": sha256_file(root.verifier_log),
        "log": str(root.verifier_log),
    }
