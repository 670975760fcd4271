"""The run's own verifier: what it says is the evidence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.agent.files import sha256_file
from tests.remote.agent.agent_host import AgentHost, wait_for


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        made.run.path.mkdir(parents=True)
        yield made


def verify(host: AgentHost, command: str, **fields: Any) -> dict[str, Any]:
    fields = {"cwd": str(host.project), "python": sys.executable, **fields}
    return host.do("verify_run", command=command, **fields)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_exit_code_is_an_answer(host: AgentHost, code: int) -> None:
    """A verifier that fails is evidence too, with its output and the output's digest."""
    found = verify(host, f"echo checked; echo badly >&2; exit {code}")
    assert found["exit_code"] == code
    assert found["output_tail"] == "checked\nbadly\n"
    assert found["output_sha256"] == sha256_file(host.run.verifier_log)
    assert found["log"] == str(host.run.verifier_log)


def test_python_is_the_jobs_own(host: AgentHost) -> None:
    """`python` in the command is the job's Python, and the run's places are set."""
    (host.project / "verify.py").write_text(
        "import os, sys\nprint(sys.executable)\nprint(os.environ['AUTODL_RUN_ROOT'])\n"
    )
    lines = verify(host, "python verify.py")["output_tail"].split("\n")
    assert Path(lines[0]).resolve() == Path(sys.executable).resolve()
    assert lines[1] == str(host.run.path)


def test_python_without_its_plain_name(host: AgentHost) -> None:
    """Where only python3 exists, `python` still finds it."""
    bare = host.folder / "bare"
    bare.mkdir()
    (bare / "python3").symlink_to(Path(sys.executable).resolve())
    found = verify(host, "command -v python && python -c 'print(6 * 7)'", python=f"{bare}/python3")
    assert found["exit_code"] == 0, found
    assert found["output_tail"].endswith("\n42\n")


def test_model_path_of_the_launch(host: AgentHost) -> None:
    """The verifier sees the same model as the trainer did."""
    host.launch("true", model_path="/models/tiny")
    host.exit_record()
    assert verify(host, 'echo "$MODEL_PATH"')["output_tail"] == "/models/tiny\n"


def test_timeout_ends_the_whole_group(host: AgentHost) -> None:
    """A verifier that hangs is ended with its children, and exits 124."""
    error = host.refusal(
        "verify_run",
        command="sleep 71 & echo $! > child; wait",
        cwd=str(host.project),
        timeout_seconds=0.5,
    )
    assert (error["kind"], error["exit_code"]) == ("timeout", 124)
    child = int((host.project / "child").read_text())
    wait_for(lambda: not Path(f"/proc/{child}/cmdline").exists() or not cmdline(child))


def cmdline(pid: int) -> bytes:
    """Empty for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_death_by_signal(host: AgentHost) -> None:
    """A verifier that is killed says 128+n."""
    assert verify(host, "kill -9 $$")["exit_code"] == 137


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"command": ""}, 64),
        ({"command": ["true"]}, 64),
        ({"cwd": "/no/such/folder"}, 3),
    ],
)
def test_wrong_fields(host: AgentHost, fields: dict[str, Any], code: int) -> None:
    """A wrong request runs nothing."""
    asked = {"command": "true", "cwd": str(host.project), **fields}
    assert host.refusal("verify_run", **asked)["exit_code"] == code


def test_asked_again_it_is_not_run_again(host: AgentHost) -> None:
    """The same request gives the recorded answer."""
    fields = {"command": "echo run >> count", "cwd": str(host.project)}
    first = host.do("verify_run", **fields)
    assert host.do("verify_run", **fields) == first
    assert (host.project / "count").read_text() == "run\n"
