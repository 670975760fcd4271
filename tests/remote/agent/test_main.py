from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.__main__ import main
from remote.agent.files import read_json, sha256_file
from remote.agent.layout import Layout
from remote.agent.manifest import scan_tree, tree_sha256
from remote.agent.pack import build_agent
from remote.agent.steps import STEPS

Envelope = Callable[..., dict[str, Any]]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed agent, in a folder whose name needs quoting."""
    path = tmp_path_factory.mktemp("a gent") / "agent.pyz"
    path.write_bytes(build_agent())
    return path


def _call(door: list[str], step: str, folder: Path, asked: object) -> subprocess.CompletedProcess:
    (folder / "q.json").write_text(asked if isinstance(asked, str) else json.dumps(asked))
    return subprocess.run(
        [*door, step, str(folder / "q.json"), str(folder / "a.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def _oldest_python() -> str | None:
    """A Python 3.8, the oldest that hosts may bring, if this machine has one."""
    kept = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which("python3.8"), *kept.glob("3.8.*/bin/python")]
    for candidate in filter(None, candidates):
        asked = [str(candidate), "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 8))"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


def test_the_steps_hold_on_the_oldest_python(
    packed: Path, envelope: Envelope, layout: Layout, tmp_path: Path
) -> None:
    """Python 3.8: unpack, environment, snapshot, collect, one by one."""
    oldest = _oldest_python()
    if oldest is None:
        pytest.skip("Python 3.8 is not on this machine")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(1)\n")
    payload = tmp_path / "payload.tar.gz"
    with tarfile.open(payload, "w:gz") as archive:
        archive.add(tmp_path / "project", "project")
    entries = scan_tree(tmp_path, lambda path, _folder: path.split("/")[0] != "project")
    hashes = {"payload_sha256": sha256_file(payload), "tree_sha256": tree_sha256(entries)}
    patterns: dict[str, list[str]] = {"include": [], "exclude": [], "artifacts": []}

    def step(name: str, /, **fields: Any) -> dict[str, Any]:
        done = _call([oldest, "-I", str(packed)], name, tmp_path, envelope(name, **fields))
        assert done.returncode == 0, done.stderr
        evidence: dict[str, Any] = read_json(tmp_path / "a.json")["evidence"]
        return evidence

    assert step("hello")["python"].startswith("3.8.")
    assert step("preflight")["status"] == "PASS"
    assert step("unpack", payload=str(payload), **hashes)["files"] == 1
    venv = step("environment", kind="venv", name=None, requirements=None)
    assert venv["python"].startswith(str(layout.venvs))
    assert step("snapshot", inputs=[]) == {"inputs": []}
    listed = step("collect", **patterns)
    assert listed["file_count"] == 1  # environment.txt


@pytest.mark.parametrize("way", ["zip", "tree"])
def test_answer_file_is_the_evidence(
    way: str, packed: Path, envelope: Envelope, tmp_path: Path
) -> None:
    """Zip and tree answer alike: exit 0, nothing on stdout, request id and evidence in the file."""
    door = ["-I", str(packed)] if way == "zip" else ["-m", "remote.agent"]
    asked = envelope("digest", paths=[])
    done = _call([sys.executable, *door], "digest", tmp_path, asked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answer = read_json(tmp_path / "a.json")
    assert answer["ok"] is True
    assert answer["request_id"] == asked["request_id"]
    assert answer["evidence"] == {"files": {}}


def test_known_failure_is_a_value(packed: Path, envelope: Envelope, tmp_path: Path) -> None:
    """Exit code and answer carry the error; stderr has one line and no traceback."""
    door = [sys.executable, "-I", str(packed)]
    done = _call(door, "digest", tmp_path, envelope("digest", paths=["/etc/passwd"]))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    answer = read_json(tmp_path / "a.json")
    assert answer["ok"] is False
    assert answer["error"]["kind"] == "guard_refused"
    assert answer["error"]["exit_code"] == 2


def test_a_disk_that_refuses_is_known(envelope: Envelope, tmp_path: Path) -> None:
    """A file where the data root belongs: the path and the next move, exit 1."""
    (tmp_path / "file").write_text("")
    asked = envelope("preflight", data_root=str(tmp_path / "file" / "below"))
    (tmp_path / "q.json").write_text(json.dumps(asked))
    assert main(["preflight", str(tmp_path / "q.json"), str(tmp_path / "a.json")]) == 1
    error = read_json(tmp_path / "a.json")["error"]
    assert error["kind"] == "remote_step_failed"
    assert "file" in error["message"]
    assert error["hint"]


def test_unknown_failure_is_a_traceback_and_no_answer(
    packed: Path, envelope: Envelope, tmp_path: Path
) -> None:
    """Exit 70: the caller must not take it for an answer."""
    asked = envelope("snapshot", inputs=[1])
    done = _call([sys.executable, "-I", str(packed)], "snapshot", tmp_path, asked)
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("asked", ["", "{", "[]", '"text"', '{"protocol": 1}'])
def test_damaged_requests_are_usage_errors(asked: str, tmp_path: Path) -> None:
    """Whatever lies in the request file: exit 64 with an answer."""
    (tmp_path / "q.json").write_text(asked)
    assert main(["hello", str(tmp_path / "q.json"), str(tmp_path / "a.json")]) == 64
    assert read_json(tmp_path / "a.json")["error"]["kind"] == "usage"


@pytest.mark.parametrize("given", [[], ["nonsense", "a", "b"], ["hello"], ["hello", "a", "b", "c"]])
def test_wrong_arguments_exit_64(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The steps are listed."""
    assert main(given) == 64
    assert "unpack" in capsys.readouterr().err


def test_a_request_with_secrets_does_not_stay(envelope: Envelope, tmp_path: Path) -> None:
    """The request file goes as soon as it is read, whatever becomes of the step."""
    asked = tmp_path / "q.json"
    asked.write_text(json.dumps(envelope("digest", paths=[], secrets={"HF_TOKEN": "x"})))
    assert main(["digest", str(asked), str(tmp_path / "a.json")]) == 0
    assert os.listdir(tmp_path) == ["a.json"]


def test_every_step_has_its_function() -> None:
    """The table names only what exists."""
    import importlib

    for name, step in STEPS.items():
        module = importlib.import_module(step.module)
        assert callable(getattr(module, step.function)), name
