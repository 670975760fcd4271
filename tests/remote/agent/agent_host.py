"""A host of a test's own: a data root, the packed agent, and the processes it starts there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.agent.__main__ import main
from remote.agent.layout import Layout
from remote.agent.pack import build_agent
from remote.agent.process import DATA_ROOT_TAG, tagged

JOB = "demo"
RUN_ID = "20260102-030405"
WATCHDOG = {
    "train_until_seconds": 3600,
    "stop_at_seconds": 7200,
    "stop_argv": ["/bin/true"],
    "grant": "grant-1",
    "poll_seconds": 0.2,
    "persist_seconds": 1,
    "term_grace_seconds": 1,
}


class AgentHost:
    """Calls the agent as the controller does, and ends what it started on this data root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.data_root = folder / "data root"
        self.project = self.data_root / "project"
        self.project.mkdir(parents=True)
        self.agent = folder / "agent.pyz"
        self.agent.write_bytes(build_agent())
        self.layout = Layout(self.data_root, JOB, RUN_ID, 1)
        self.run = self.layout.run_root()

    def __enter__(self) -> AgentHost:
        return self

    def __exit__(self, *_: object) -> None:
        give_up_at = time.monotonic() + 5
        while time.monotonic() < give_up_at:
            rows = tagged({DATA_ROOT_TAG: str(self.data_root)})
            for row in rows:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(row.pid, signal.SIGKILL)
            if not rows:
                return

    def request(self, step: str, attempt: int = 1, suffix: str = "", **fields: Any) -> Path:
        """Write a request file; its path."""
        path = self.folder / "request.json"
        envelope = {
            "protocol": 1,
            "request_id": f"{RUN_ID}/{attempt}/{step}{suffix}",
            "epoch": 1,
            "job": JOB,
            "run_id": RUN_ID,
            "attempt": attempt,
            "data_root": str(self.data_root),
        }
        path.write_text(json.dumps({**envelope, **fields}))
        return path

    def argv(self, step: str, request: Path) -> list[str]:
        return [
            sys.executable,
            "-I",
            str(self.agent),
            step,
            str(request),
            str(self.folder / "response.json"),
        ]

    def call(self, step: str, **fields: Any) -> dict[str, Any]:
        """The step's whole answer, an error's too."""
        response = self.folder / "response.json"
        response.unlink(missing_ok=True)
        # Through the door that the packed agent has, without starting a Python for each call.
        code = main([step, str(self.request(step, **fields)), str(response)])
        assert response.exists(), f"{step} exited {code} without an answer"
        answer: dict[str, Any] = json.loads(response.read_text())
        assert code == (0 if answer["ok"] else answer["error"]["exit_code"])
        return answer

    def do(self, step: str, **fields: Any) -> dict[str, Any]:
        """The step's evidence."""
        answer = self.call(step, **fields)
        assert answer["ok"], answer
        return dict(answer["evidence"])

    def refusal(self, step: str, **fields: Any) -> dict[str, Any]:
        """The step's error."""
        answer = self.call(step, **fields)
        assert not answer["ok"], answer
        return dict(answer["error"])

    def launch(self, script: str, **fields: Any) -> dict[str, Any]:
        """Launch a bash script as the trainer."""
        return self.do("launch", **self.launch_fields(script, **fields))

    def launch_fields(self, script: str, **fields: Any) -> dict[str, Any]:
        return {
            "argv": ["bash", "-c", script],
            "cwd": str(self.project),
            "grace_seconds": 0,
            "heartbeat_seconds": 0.2,
            "sample_seconds": 0.5,
            **fields,
        }

    def arm(self, **fields: Any) -> dict[str, Any]:
        return self.do("arm", watchdog={**WATCHDOG, **fields})

    def exit_record(self, timeout: float = 20) -> dict[str, Any]:
        """The exit record, waited for."""
        wait_for(self.run.exit_record.exists, timeout)
        record: dict[str, Any] = json.loads(self.run.exit_record.read_text())
        return record

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.launch.read_text())
        return found

    def log_lines(self) -> list[str]:
        """What the trainer itself wrote."""
        lines = self.run.log.read_text().splitlines()
        return [line for line in lines if not line.startswith("=== charter")]


def wait_for(condition: Callable[[], object], timeout: float = 20) -> None:
    """Wait for something that another process does; fails when it does not come."""
    give_up_at = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.02)
