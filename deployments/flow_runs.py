"""Flow runs through Prefect's REST API: start one, look at it, answer its gate.

Plain HTTP, so that the command line need not import Prefect (which takes seconds). A rejected
resume is HTTP 200 with `status: REJECT`: the body is read, never the status code alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from deployments.environment import client_environment
from experiment.errors import CharterError, HostUnreachable, NotFound
from experiment.paths import Home

DEPLOYMENT = "run-experiment/run_experiment"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
_TRIES = 8
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class FlowRun:
    """A flow run as the server has it. `kind` is Prefect's state type, `name` the state's name."""

    flow_run_id: str
    kind: str
    name: str
    message: str
    dashboard_url: str

    @property
    def ended(self) -> bool:
        return self.kind in TERMINAL

    @property
    def suspended(self) -> bool:
        return self.kind == "PAUSED"


class FlowRuns:
    """The flow runs of one home's server.

    Raises (all calls):
        HostUnreachable: no server, or it does not answer.
    """

    def __init__(self, home: Home) -> None:
        environment = client_environment(home)
        user, _, password = environment["PREFECT_API_AUTH_STRING"].partition(":")
        self._api = environment["PREFECT_API_URL"]
        self._client = httpx.Client(
            base_url=self._api,
            auth=httpx.BasicAuth(user, password),
            timeout=15,
            trust_env=False,
        )

    def start(self, parameters: Mapping[str, Any], *, key: str, tags: list[str]) -> FlowRun:
        """Create a flow run of run_experiment.

        Args:
            key: idempotency key: the same one gives the same flow run, however often it is sent.
        """
        found = self._call("GET", f"/deployments/name/{DEPLOYMENT}")
        body = {"parameters": dict(parameters), "idempotency_key": key, "tags": tags}
        made = self._call("POST", f"/deployments/{found['id']}/create_flow_run", body)
        return self._flow_run(made)

    def get(self, flow_run_id: str) -> FlowRun:
        return self._flow_run(self._call("GET", f"/flow_runs/{flow_run_id}"))

    def resume(self, flow_run_id: str, answer: Mapping[str, Any]) -> None:
        """Answer the gate's form.

        Raises:
            CharterError: the server does not take the answer.
        """
        body: dict[str, Any] = {}
        for _ in range(_TRIES):
            body = self._call("POST", f"/flow_runs/{flow_run_id}/resume", {"run_input": answer})
            if body["status"] == "ACCEPT":
                return
            # Right after Suspended the form's schema is not stored yet; and another person's
            # answer may have been first, which the caller sees in the ledger.
            if not self.get(flow_run_id).suspended:
                return
            time.sleep(_PAUSE_SECONDS)
        raise CharterError(
            "the gate did not take the answer",
            f"flow run {flow_run_id}",
            found=str(body.get("details", {}).get("reason", body.get("status"))),
            hint="answer in the dashboard",
        )

    def cancel(self, flow_run_id: str) -> None:
        """Ask Prefect to cancel: a detach, nothing on a host ends."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self._call("POST", f"/flow_runs/{flow_run_id}/set_state", {"state": state})

    def close(self) -> None:
        self._client.close()

    def _flow_run(self, body: Mapping[str, Any]) -> FlowRun:
        state = body.get("state") or {}
        return FlowRun(
            flow_run_id=str(body["id"]),
            kind=str(state.get("type") or "PENDING"),
            name=str(state.get("name") or ""),
            message=str(state.get("message") or ""),
            dashboard_url=self._api.removesuffix("/api") + f"/runs/flow-run/{body['id']}",
        )

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One request; a busy server (503, a locked database) is asked again a few times."""
        last = ""
        for attempt in range(_TRIES):
            try:
                response = self._client.request(method, path, json=body)
            except httpx.TransportError as error:
                last = str(error) or type(error).__name__
            else:
                if response.status_code == 404:
                    raise NotFound("Prefect does not know it", path, hint="charter up", exit_code=1)
                if response.status_code < 500:
                    return self._parsed(response, path)
                last = f"HTTP {response.status_code}"
            time.sleep(_PAUSE_SECONDS * (attempt + 1))
        raise HostUnreachable(
            "the Prefect server does not answer", self._api, found=last, hint="charter up"
        )

    def _parsed(self, response: httpx.Response, path: str) -> dict[str, Any]:
        if response.status_code >= 400:
            raise CharterError(
                "Prefect refused the request",
                path,
                found=f"HTTP {response.status_code}: {response.text[:300]}",
            )
        parsed: dict[str, Any] = response.json() if response.content else {}
        return parsed
