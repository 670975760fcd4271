"""The full preflight: probes run in the job's Python, and silence is a failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remote.agent.agent_host import AgentHost

GOOD = """
import json, sys
asked = json.load(open(sys.argv[1]))
check = {"name": "import", "status": asked.get("status", "PASS"), "found": "1", "expected": "1",
         "fix": ""}
json.dump({"checks": [check], "packages": {"thing": "1.2"}}, open(sys.argv[2], "w"))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


def probe(host: AgentHost, source: str, **fields: Any) -> dict[str, Any]:
    folder = host.project / ".autodl/probes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "imports.py").write_text(source)
    given = {"probes": ["imports"], "python": sys.executable, "project_dir": str(host.project)}
    return host.do("probe", **{**given, **fields})


def test_pass(host: AgentHost) -> None:
    """Checks and package versions come back, and are written for people."""
    report = probe(host, GOOD)
    assert report["status"] == "PASS"
    assert report["checks"][0]["probe"] == "imports"
    assert report["packages"] == {"thing": "1.2"}
    assert json.loads(host.run.preflight.read_text()) == report


def test_fail_is_an_answer(host: AgentHost) -> None:
    """One failed check fails the report; arguments reach the probe that they are for."""
    report = probe(host, GOOD, args={"imports": {"status": "FAIL"}, "other": {"status": "PASS"}})
    assert report["status"] == "FAIL"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise SystemExit('no torch here')", "no torch here"),
        ("pass", "no answer"),
        ("import sys; open(sys.argv[2], 'w').write('{')", "no answer"),
        ("import sys; open(sys.argv[2], 'w').write('{\"checks\": []}')", "no answer"),
        ("import sys; open(sys.argv[2], 'w').write('{\"checks\": [{}]}')", "no answer"),
        ("import time; time.sleep(60)", "within 1 s"),
        ("import os; os.kill(os.getpid(), 9)", "exit code 137"),
    ],
)
def test_silence_is_a_failure(host: AgentHost, source: str, words: str) -> None:
    """A probe that crashes, hangs, dies or says nothing whole never passes."""
    report = probe(host, source, timeout_seconds=1 if "sleep" in source else 60)
    assert report["status"] == "FAIL"
    assert words in report["checks"][0]["found"]


def test_missing_probe_and_python(host: AgentHost) -> None:
    """A probe that the bundle lacks, or a Python that isn't there, is a failed check."""
    report = probe(host, GOOD, probes=["imports", "absent"])
    assert [check["status"] for check in report["checks"]] == ["PASS", "FAIL"]
    assert probe(host, GOOD, python="/no/python")["status"] == "FAIL"


@pytest.mark.parametrize("names", ["imports", ["../x"], ["A"], None])
def test_wrong_names(host: AgentHost, names: object) -> None:
    """Probe names are names, not paths."""
    assert host.refusal("probe", probes=names)["exit_code"] == 64
