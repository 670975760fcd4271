"""One real Prefect server with both runners for the whole session, in a home of its own."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployments import server
from deployments.environment import api_password
from deployments.starting import ready_file
from experiment.paths import Home
from remote.agent import process
from remote.agent.files import read_json

MANIFEST = Path(__file__).with_name("prefect.yaml")


@dataclass(frozen=True)
class Api:
    """The server's REST interface, spoken plainly."""

    home: Home
    url: str

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One authenticated call; the answer's JSON.

        Prefect on SQLite answers 503 now and then while its database is locked: asked again, as
        `deployments.flow_runs` does.
        """
        token = base64.b64encode(api_password(self.home).encode()).decode()
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        for pause in (0.5, 1, 2, 4, 0):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not pause:
                    raise
                error.close()
                time.sleep(pause)
        raise AssertionError("not reached")

    def start(self, runner: str, name: str, parameters: dict[str, Any]) -> str:
        """A flow run of a deployment; its id."""
        ready = read_json(ready_file(self.home, runner))
        path = f"/deployments/{ready['deployments'][name]}/create_flow_run"
        run = self.call("POST", path, {"parameters": parameters, "state": {"type": "SCHEDULED"}})
        return str(run["id"])

    def state(self, run_id: str) -> str:
        return str(self.call("GET", f"/flow_runs/{run_id}")["state_type"])


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home whose server and runners are up; ended, to the last process, with the session."""
    home = Home(tmp_path_factory.mktemp("served"))
    server.up(home, manifest=MANIFEST)
    yield home
    server.down(home)
    left = process.tagged({"CHARTER_HOME": str(home.root)})
    assert left == [], f"left behind: {left}"


@pytest.fixture
def api(served: Home) -> Api:
    return Api(served, server.inspect(served).url)


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for something real to become true, and no longer than it may take."""

    def wait(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.1)

    return wait
