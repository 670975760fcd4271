"""The agent on a host: place it, ask it one step at a time, and believe only whole answers.

A request is a line to the agent that this process keeps running there, its answer is a line back,
and is compared: protocol, request id and the digest of the request must be ours. A step that gives
data on stdout, and an agent of an older Charter, get their request in a file and run by themselves.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from experiment.errors import (
    Busy,
    CharterError,
    EvidenceMismatch,
    Fenced,
    GuardRefused,
    HostUnreachable,
    NotFound,
    RemoteStepFailed,
    StepTimeout,
    UsageError,
)
from experiment.hosts.base import Completed, Host
from remote.agent.answer import PROTOCOL, request_sha256
from remote.agent.files import canonical_json, sha256_bytes
from remote.agent.layout import Layout
from remote.agent.pack import agent_sha256, build_agent

FIND_PYTHON = Path(__file__).resolve().parents[2] / "remote" / "scripts" / "find-python.sh"
NO_INTERPRETER = 127
_FILE_SECONDS = 60.0

# The agent's word for what went wrong, and the error that callers here branch on.
_KINDS: dict[str, type[CharterError]] = {
    "busy": Busy,
    "guard_refused": GuardRefused,
    "evidence_mismatch": EvidenceMismatch,
    "not_found": NotFound,
    "usage": UsageError,
    "timeout": StepTimeout,
}


@dataclass(frozen=True)
class RequestRef:
    """Which run a request is for, under which epoch. `suffix` tells repeated requests apart."""

    job: str
    run_id: str
    attempt: int
    epoch: int
    suffix: str = ""

    def request_id(self, step: str) -> str:
        stem = f"{self.run_id}/{self.attempt}/{step}"
        return f"{stem}/{self.suffix}" if self.suffix else stem


def find_python(host: Host) -> str:
    """Absolute path of a Python 3.8 or newer on the host.

    Raises:
        RemoteStepFailed: there is none (exit 127).
    """
    found = host.run(["sh", "-s"], timeout=60, stdin=FIND_PYTHON.read_bytes())
    path = found.stdout.decode("utf-8", "replace").strip()
    if found.returncode != 0 or not path.startswith("/"):
        raise RemoteStepFailed(
            "no Python on the host",
            host.address,
            expected="Python 3.8 or newer",
            found=found.complaint() or f"exit {found.returncode}",
            hint="choose an image with Python, or install it",
            exit_code=NO_INTERPRETER,
        )
    return path


class AgentDoor:
    """One host's agent.

    Args:
        data_root: absolute path of the data disk's folder on the host.
        python: absolute path of the interpreter there.
        sha256: the agent that was placed there, by an older Charter perhaps: it is the one that
            is spoken to. None: this Charter's own, which `place` sends.
    """

    def __init__(self, host: Host, data_root: str, python: str, sha256: str | None = None) -> None:
        self.host = host
        self.data_root = data_root.rstrip("/")
        self.python = python
        self.sha256 = sha256 or agent_sha256()
        self._layout = Layout(Path(self.data_root))

    @property
    def agent_path(self) -> str:
        """Named by its hash: an agent that is running there is never replaced under its feet."""
        return str(self._layout.agent(self.sha256))

    def place(self) -> dict[str, Any]:
        """Send this Charter's agent unless it is there, compare its hash, ask who the host is.

        Returns:
            the evidence of `hello`.

        Raises:
            EvidenceMismatch: what runs there is not what was sent.
        """
        program = build_agent()
        self.sha256 = sha256_bytes(program)
        try:
            there = self.host.read(self.agent_path, timeout=_FILE_SECONDS) == program
        except FileNotFoundError:
            there = False
        if not there:
            self.host.write(program, self.agent_path, timeout=_FILE_SECONDS)
        hello = self.call("hello", {}, ref=RequestRef("", "", 0, 0), timeout=60)
        if hello["agent_sha256"] != self.sha256:
            raise EvidenceMismatch(
                "the agent on the host is another one",
                self.agent_path,
                expected=self.sha256,
                found=str(hello["agent_sha256"]),
                hint="look at who else writes to that folder",
            )
        return hello

    def call(
        self, step: str, fields: Mapping[str, Any], *, ref: RequestRef, timeout: float
    ) -> dict[str, Any]:
        """Ask for one step.

        Returns:
            its evidence.

        Raises:
            Busy, GuardRefused, EvidenceMismatch, NotFound, RemoteStepFailed: the agent's own
                errors, with its exit code.
            HostUnreachable: the host does not answer; the step may have happened.
            StepTimeout: the step did not end in time.
        """
        request = self._request(step, fields, ref)
        line = canonical_json({"step": step, "request": request})
        found = self.host.ask([self.python, "-I", self.agent_path, "stream"], line, timeout=timeout)
        if isinstance(found, Completed):
            if found.returncode == UsageError.exit_code:
                return self._by_file(
                    step, request, lambda argv: self.host.run(argv, timeout=timeout)
                )
            raise self._silent(step, found)
        told = _line(found)
        if told["response"] is None:
            said = str(told["stderr"]).encode()
            raise self._silent(step, Completed(int(told["exit_code"]), b"", said))
        return self._believed(step, request, told["response"])

    def stream(
        self,
        step: str,
        fields: Mapping[str, Any],
        sink: Callable[[bytes], None],
        *,
        ref: RequestRef,
        timeout: float,
    ) -> dict[str, Any]:
        """Ask for a step that gives its data on stdout; `sink` gets it as it comes.

        Raises:
            as `call`.
        """
        request = self._request(step, fields, ref)
        return self._by_file(
            step, request, lambda argv: self.host.stream(argv, sink, timeout=timeout)
        )

    def _request(self, step: str, fields: Mapping[str, Any], ref: RequestRef) -> dict[str, Any]:
        return {
            **fields,
            "protocol": PROTOCOL,
            "request_id": ref.request_id(step),
            "epoch": ref.epoch,
            "job": ref.job,
            "run_id": ref.run_id,
            "attempt": ref.attempt,
            "data_root": self.data_root,
        }

    def _by_file(
        self, step: str, request: dict[str, Any], run: Callable[[list[str]], Completed]
    ) -> dict[str, Any]:
        # A name of its own for every call: two controllers never read each other's answers.
        stem = f"{self._layout.requests}/{step}-{uuid4().hex[:12]}"
        asked, answered = f"{stem}.request.json", f"{stem}.response.json"
        self.host.write(canonical_json(request), asked, timeout=_FILE_SECONDS, mode=0o600)
        done = run([self.python, "-I", self.agent_path, step, asked, answered])
        try:
            answer = json.loads(self.host.read(answered, timeout=_FILE_SECONDS))
        except FileNotFoundError:
            raise self._silent(step, done) from None
        finally:
            # Also where the agent never ran: the request may carry secrets.
            self.host.run(["rm", "-f", asked, answered], timeout=_FILE_SECONDS)
        return self._believed(step, request, answer)

    def _believed(
        self, step: str, request: dict[str, Any], answer: dict[str, Any]
    ) -> dict[str, Any]:
        if not answer.get("ok"):
            raise _error(answer["error"])
        expected = request_sha256(request)
        if answer.get("request_sha256") != expected or answer.get("protocol") != PROTOCOL:
            raise EvidenceMismatch(
                "the agent answered another request",
                f"step {step} on {self.host.address}",
                expected=expected,
                found=str(answer.get("request_sha256")),
            )
        evidence: dict[str, Any] = answer["evidence"]
        return evidence

    def _silent(self, step: str, done: Completed) -> CharterError:
        """No answer file: the agent never ran, or died without one."""
        if done.returncode in (126, NO_INTERPRETER):
            return RemoteStepFailed(
                "no interpreter on the host",
                f"{shlex.quote(self.python)} on {self.host.address}",
                found=done.complaint(),
                exit_code=NO_INTERPRETER,
            )
        if done.returncode == 255:
            return HostUnreachable(
                "the host went away during a step", f"{step} on {self.host.address}"
            )
        return RemoteStepFailed(
            "the agent gave no answer",
            f"step {step} on {self.host.address}",
            expected="an answer file",
            found=f"exit {done.returncode}: {done.complaint()}",
            hint="this is a fault in Charter: please report it with the line above",
        )


def _line(found: bytes) -> dict[str, Any]:
    """What the agent's line says; anything else than its own form is no answer.

    Raises:
        EvidenceMismatch: it is not of that form.
    """
    try:
        told = json.loads(found)
    except ValueError:
        told = None
    if not isinstance(told, dict) or not {"exit_code", "response", "stderr"} <= set(told):
        raise EvidenceMismatch(
            "the agent's answer is not an answer",
            expected="one JSON object with exit_code, response and stderr",
            found=repr(found[:80]),
            hint="look at what else writes to the agent's output there",
        )
    return told


def _error(error: Mapping[str, Any]) -> CharterError:
    """The agent's own failure as the error that callers branch on."""
    kind = str(error["kind"])
    message = str(error["message"])
    if kind == "busy" and "took over" in message:
        return Fenced(message, hint=str(error["hint"]))
    chosen = _KINDS.get(kind, RemoteStepFailed)
    return chosen(message, hint=str(error["hint"]), exit_code=int(error.get("exit_code", 1)))
