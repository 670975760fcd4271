"""Starting the trainer: once, detached, recorded, without leaving a secret anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.agent.process import alive, group_members
from tests.remote.agent.agent_host import RUN_ID, AgentHost, wait_for

SECRET = "hf_PlantedTokenOfThisTest0123456789"
LONG = "echo started; sleep 60"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        yield made


def test_evidence_names_the_process(host: AgentHost) -> None:
    """The evidence, launch.json and the pid file agree on a process that lives."""
    evidence = host.launch(LONG, payload_sha256="ab" * 32)
    record = host.record()
    assert alive(evidence)
    assert alive(evidence["supervisor"])
    assert record["status"] == "launched"
    assert record["payload_sha256"] == "ab" * 32
    assert {name: record[name] for name in ("pid", "start", "boot_id", "run_root")} == {
        name: evidence[name] for name in ("pid", "start", "boot_id", "run_root")
    }
    assert host.layout.latest_pid.read_text().strip() == str(evidence["pid"])
    assert host.layout.latest_run.read_text().strip() == evidence["run_root"]


def test_our_header_is_no_proof_of_a_start(host: AgentHost) -> None:
    """A log that holds only our own header has not grown."""
    evidence = host.launch("sleep 60")
    assert host.run.log.stat().st_size == evidence["log_bytes"] > 0
    status = host.do("status")
    assert status["start_proof"]["log_grown"] is False
    assert status["log"]["grown"] == 0


def test_trainer_output_is_proof_of_a_start(host: AgentHost) -> None:
    """What the trainer writes counts from behind the header."""
    evidence = host.launch(LONG)
    wait_for(lambda: host.run.log.stat().st_size > evidence["log_bytes"])
    status = host.do("status")
    assert status["start_proof"] == {
        "recorded": True,
        "process": True,
        "log_grown": True,
        "gpu": None,
    }
    assert status["log"]["grown"] == len("started\n")


def test_answer_waits_for_the_first_output(host: AgentHost) -> None:
    """Within the grace the launch is answered when the trainer has written something itself."""
    evidence = host.launch("sleep 0.5; echo started; sleep 60", grace_seconds=20)
    assert evidence["log_grown"] is True
    assert evidence["exit_record"] is None
    assert host.log_lines() == ["started"]


def test_trainer_that_ends_at_once(host: AgentHost) -> None:
    """A silent trainer that ends within the grace is answered with its exit record."""
    evidence = host.launch("exit 9", grace_seconds=20)
    assert evidence["log_grown"] is False
    assert evidence["exit_record"]["exit_code"] == 9


def test_second_launch_with_a_live_process_is_refused(host: AgentHost) -> None:
    """Another request for the same job starts nothing while the trainer lives."""
    first = host.launch(LONG)
    error = host.refusal("launch", attempt=2, **host.launch_fields("echo second"))
    assert (error["kind"], error["exit_code"]) == ("busy", 1)
    assert str(first["pid"]) in error["message"]
    assert host.log_lines() == ["started"]


def test_stale_pid_file_does_not_refuse(host: AgentHost) -> None:
    """A pid file that names a living process of somebody else says nothing about the job."""
    host.layout.latest_pid.parent.mkdir(parents=True)
    host.layout.latest_pid.write_text(f"{os.getpid()}\n")
    assert alive(host.launch(LONG))


def test_escaped_grandchild_refuses_a_second_launch(host: AgentHost) -> None:
    """A process that left the session and outlived the trainer still holds the job."""
    host.launch("setsid sleep 60 & disown; sleep 0.3")
    left = host.exit_record()["left_behind"]
    assert len(left) == 1
    error = host.refusal("launch", attempt=2, **host.launch_fields("true"))
    assert error["kind"] == "busy"
    assert str(left[0]) in error["message"]


def test_same_request_answers_the_same(host: AgentHost) -> None:
    """Asked again, the recorded answer comes back and nothing is started."""
    fields = host.launch_fields(LONG)
    first = host.call("launch", **fields)
    again = host.call("launch", **fields)
    assert again["replayed"] is True
    assert again["evidence"] == first["evidence"]


def test_killed_between_start_and_answer(host: AgentHost) -> None:
    """A launch step killed after the start is recovered through launch.json: one start only."""
    fields = host.launch_fields("echo $$; sleep 60")
    step = subprocess.Popen(host.argv("launch", host.request("launch", **fields)))
    wait_for(host.run.launch.exists)
    step.kill()
    step.wait()
    for answer in (host.layout.charter / "answers").rglob("*launch*.json"):
        answer.unlink()  # it may have been quicker than the signal
    evidence = host.do("launch", **fields)
    assert alive(evidence)
    assert host.record()["pid"] == evidence["pid"]
    wait_for(host.log_lines)
    assert host.log_lines() == [str(evidence["pid"])]


@pytest.mark.parametrize("delay", [0.02, 0.06, 0.1, 0.15, 0.2])
def test_killed_at_any_moment_starts_at_most_once(host: AgentHost, delay: float) -> None:
    """Whenever the step dies, asking again ends with exactly one trainer."""
    fields = host.launch_fields("echo $$; sleep 60")
    step = subprocess.Popen(host.argv("launch", host.request("launch", **fields)))
    try:
        step.wait(delay)
    except subprocess.TimeoutExpired:
        step.kill()
        step.wait()
    evidence = host.do("launch", **fields)
    assert alive(evidence)
    wait_for(host.log_lines)
    assert host.log_lines() == [str(evidence["pid"])]


def test_survives_the_callers_session(host: AgentHost) -> None:
    """The whole session that launched is killed; trainer and supervisor go on to the end."""
    request = host.request("launch", **host.launch_fields("sleep 1; echo survived"))
    shell = subprocess.Popen(
        ["bash", "-c", '"$@"; sleep 60', "bash", *host.argv("launch", request)],
        start_new_session=True,
    )
    wait_for((host.folder / "response.json").exists)
    assert group_members(shell.pid)
    os.killpg(shell.pid, signal.SIGHUP)
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    assert host.exit_record()["exit_code"] == 0
    assert host.log_lines() == ["survived"]


def test_secret_reaches_the_trainer_and_nothing_else(host: AgentHost) -> None:
    """The trainer sees the value; no file and no answer holds it, the request is gone."""
    host.arm()
    fields = host.launch_fields(
        'echo "${#HF_TOKEN} ${HF_TOKEN:0:3}"; sleep 60', secrets={"HF_TOKEN": SECRET}
    )
    answer = host.call("launch", **fields)
    wait_for(host.log_lines)
    assert host.log_lines() == [f"{len(SECRET)} hf_"]
    assert SECRET not in json.dumps(answer)
    assert not (host.folder / "request.json").exists()
    assert host.record()["secret_names"] == ["HF_TOKEN"]
    status = host.call("status")
    assert SECRET not in json.dumps(status)
    holding = [
        path
        for path in host.folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert holding == []
    environ = Path(f"/proc/{answer['evidence']['supervisor']['pid']}/environ").read_bytes()
    assert SECRET.encode() not in environ


def test_secret_in_the_command_line_is_refused(host: AgentHost) -> None:
    """A command line is recorded, so a secret in it is refused by name, not by value."""
    fields = host.launch_fields(f"echo {SECRET}", secrets={"HF_TOKEN": SECRET})
    error = host.refusal("launch", **fields)
    assert (error["kind"], error["exit_code"]) == ("guard_refused", 2)
    assert "HF_TOKEN" in error["message"]
    assert SECRET not in json.dumps(error)


def test_missing_program_exits_127_each_time(host: AgentHost) -> None:
    """A program that is not there is said at once, leaves a record, and is not tried again."""
    fields: dict[str, Any] = {"argv": ["no-such-program"], "cwd": str(host.project)}
    for _ in range(2):
        error = host.refusal("launch", **fields)
        assert (error["kind"], error["exit_code"]) == ("remote_step_failed", 127)
        assert "no-such-program" in error["message"]
    assert host.exit_record()["exit_code"] == 127


def test_missing_project_folder_exits_3(host: AgentHost) -> None:
    """Without the project nothing is started."""
    error = host.refusal("launch", argv=["true"], cwd=str(host.folder / "missing"))
    assert (error["kind"], error["exit_code"]) == ("not_found", 3)
    assert not host.run.launch.exists()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"argv": "sleep 1"}, "argv"),
        ({"argv": []}, "argv"),
        ({"cwd": "project"}, "cwd"),
        ({"env": {"A B": "c"}}, "env"),
        ({"env": {"A": 1}}, "env.A"),
        ({"secrets": ["HF_TOKEN"]}, "secrets"),
    ],
)
def test_wrong_fields_are_named(host: AgentHost, fields: dict[str, Any], word: str) -> None:
    """A wrong request exits 64, names the field, and starts nothing."""
    error = host.refusal("launch", **{**host.launch_fields("true"), **fields})
    assert error["exit_code"] == 64
    assert word in error["message"]
    assert not host.run.launch.exists()


def test_run_root_outside_the_data_root_is_refused(host: AgentHost) -> None:
    """A run root elsewhere on the machine is refused."""
    fields = host.launch_fields("true", run_root=str(host.folder / "elsewhere"))
    assert host.refusal("launch", **fields)["exit_code"] == 2


def test_next_attempt_keeps_the_earlier_records(host: AgentHost) -> None:
    """A relaunch goes on with the log and sets the old records aside: none is taken for new."""
    host.launch("echo one; exit 3")
    assert host.exit_record()["exit_code"] == 3
    second = host.launch("echo two; sleep 60", attempt=2)
    wait_for(lambda: len(host.log_lines()) == 2)
    status = host.do("status")
    assert status["exit_record"] is None
    assert status["verdict"]["verdict"] == "RUNNING"
    assert [line for line in status["log"]["tail"] if "===" not in line] == ["two"]
    assert second["log_offset"] > 0
    earlier = json.loads((host.run.path / "attempts/1/process-exit.json").read_text())
    assert earlier["exit_code"] == 3
    assert host.log_lines() == ["one", "two"]


def test_earlier_attempt_is_still_answered(host: AgentHost) -> None:
    """The request of an earlier attempt gives that attempt's evidence, not a new start."""
    fields = host.launch_fields("true")
    first = host.do("launch", **fields)
    host.exit_record()
    host.launch("sleep 60", attempt=2)
    for answer in (host.layout.charter / "answers").rglob("*.json"):
        answer.unlink()
    assert host.do("launch", **fields)["pid"] == first["pid"]


def test_environment_of_the_trainer(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the job contract and the host's marks reach the trainer, the controller's
    own variables don't."""
    (host.project / "src").mkdir()
    monkeypatch.setenv("CHARTER_INSTANCE_TOKEN", "of-the-host")
    monkeypatch.setenv("CHARTER_LEDGER_URL", "postgresql://user:password@team")
    monkeypatch.setenv("PREFECT_API_KEY", "of-the-controller")
    evidence = host.launch(
        "env -0 > env.bin",
        model_path="/models/tiny",
        runtime_quantization="nf4",
        env={"HF_ENDPOINT": "https://mirror", "CHARTER_JOB": "other", "OMP_NUM_THREADS": "1"},
    )
    assert host.exit_record()["exit_code"] == 0
    text = (host.project / "env.bin").read_text()
    held = dict(item.split("=", 1) for item in text.split("\0") if item)
    root = str(host.data_root)
    expected = {
        "AUTODL_RUN_ROOT": evidence["run_root"],
        "AUTODL_RUN_ID": RUN_ID,
        "AUTODL_JOB_DIR": f"{root}/jobs/demo",
        "AUTODL_RUNTIME_QUANTIZATION": "nf4",
        "MODEL_PATH": "/models/tiny",
        "AGENTICQWEN_MODEL_PATH": "/models/tiny",
        "HF_HOME": f"{root}/hf",
        "HF_HUB_CACHE": f"{root}/hf/hub",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "600",
        "HF_HUB_ETAG_TIMEOUT": "120",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(host.project / "src"),
        "CHARTER_ROLE": "host",
        "CHARTER_JOB": "demo",
        "CHARTER_RUN_ID": RUN_ID,
        "CHARTER_ATTEMPT": "1",
        "HF_ENDPOINT": "https://mirror",
        "OMP_NUM_THREADS": "1",
        "CHARTER_INSTANCE_TOKEN": "of-the-host",
        "CHARTER_LEDGER_URL": None,
        "PREFECT_API_KEY": None,
    }
    assert {name: held.get(name) for name in expected} == expected
