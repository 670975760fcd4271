"""One poll's answer: process, record, log, metrics, outputs and the verdict agree."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.agent.agent_host import AgentHost, wait_for

WRITES = """
echo '{"step": 1, "loss": 0.5}' > "$AUTODL_RUN_ROOT/metrics.jsonl"
echo '{"step": 2, "loss": NaN}' >> "$AUTODL_RUN_ROOT/metrics.jsonl"
echo '{}' > "$AUTODL_RUN_ROOT/summary.json"
mkdir "$AUTODL_RUN_ROOT/model"
echo one; echo two
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


def test_nothing_yet(host: AgentHost) -> None:
    """Before a launch status answers, knows nothing, and changes nothing."""
    status = host.do("status", artifacts=["summary.json"])
    assert status["verdict"]["verdict"] == "UNKNOWN"
    assert status["process"] == {"pid": None, "alive": False, "state": "gone", "tree": []}
    assert status["watchdog"] == {"armed": False, "alive": False}
    assert status["outputs"] == {"present": [], "missing": ["summary.json"]}
    assert not host.run.path.exists()


def test_whole_run(host: AgentHost) -> None:
    """After a good end every part of the answer says so."""
    host.do("hello")
    host.launch(WRITES)
    host.exit_record()
    status = host.do("status", log_offset=0, artifacts=["summary.json", "metrics.*"])
    assert status["verdict"]["verdict"] == "COMPLETED"
    assert status["exit_record"]["exit_code"] == 0
    assert status["outputs"]["missing"] == []
    assert [point["metrics"]["loss"] for point in status["metrics"]["points"]] == [0.5, "nan"]
    assert status["log"]["tail"][1:] == ["one", "two"]
    assert status["marker"] == host.layout.marker.read_text().strip()
    again = host.do(
        "status",
        log_offset=status["log"]["next_offset"],
        metrics_offset=status["metrics"]["next_offset"],
    )
    assert (again["log"]["text"], again["metrics"]["points"]) == ("", [])


@pytest.mark.parametrize("artifact", ["model", "checkpoints/checkpoint-*", "nothing.json"])
def test_missing_output_is_partial(host: AgentHost, artifact: str) -> None:
    """Exit 0 without a required output, or with an empty folder for it, is PARTIAL."""
    host.launch(WRITES, artifacts=[artifact])
    host.exit_record()
    status = host.do("status")
    assert status["outputs"]["missing"] == [artifact]
    assert status["verdict"]["verdict"] == "PARTIAL"


def test_silence_is_stalled(host: AgentHost) -> None:
    """A live process whose log is silent and that uses no GPU is RUNNING, and stalled."""
    host.launch("echo up; sleep 60")
    wait_for(host.log_lines)
    old = time.time() - 1000
    os.utime(host.run.log, (old, old))
    status = host.do("status")
    assert status["verdict"]["verdict"] == "RUNNING"
    assert status["verdict"]["flags"]["stalled"] is True
    patient = host.do("status", stale_after_seconds=5000)
    assert patient["verdict"]["flags"]["stalled"] is False


def test_tail_is_limited_to_the_newest_attempt(host: AgentHost) -> None:
    """An earlier attempt's failure is neither shown nor taken for evidence."""
    host.launch("echo 'ValueError: old failure'; exit 1")
    host.exit_record()
    second = host.launch("echo fresh; sleep 60", attempt=2)
    wait_for(lambda: len(host.log_lines()) == 2)
    host.run.launch.write_text(json.dumps({**host.record(), "supervisor": None, "start": 1}))
    status = host.do("status", tail_lines=50)
    assert [line for line in status["log"]["tail"] if "===" not in line] == ["fresh"]
    assert second["log_offset"] > 0


def test_failure_without_a_record(host: AgentHost) -> None:
    """No process, no record, a traceback in the log: FAILED."""
    host.run.path.mkdir(parents=True)
    host.run.log.parent.mkdir(parents=True, exist_ok=True)
    host.run.log.write_text("step 1\nTraceback (most recent call last):\nValueError: x\n")
    assert host.do("status")["verdict"]["verdict"] == "FAILED"
