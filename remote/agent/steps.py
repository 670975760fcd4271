"""The table of what the agent can do: one line a step, one module a step.

A step's module exposes `run(request, layout) -> evidence` and is imported only when it is asked
for. `RECORDED` steps have one effect per request id; their module may expose
`still_true(evidence, request, layout) -> bool` (see `answer.answered`). `REPEATED` steps change
something, and again each time they are asked: they obey the epoch, and nothing is recorded.
`READ` steps change nothing.
"""

from __future__ import annotations

from typing import NamedTuple

READ = "read"
REPEATED = "repeated"
RECORDED = "recorded"


class Step(NamedTuple):
    """Where a step's code is, and how its answers are kept."""

    module: str
    function: str
    kind: str


STEPS: dict[str, Step] = {
    "hello": Step("remote.agent.hello", "run", READ),
    "digest": Step("remote.agent.digest", "run", READ),
    "preflight": Step("remote.agent.preflight", "run", REPEATED),
    "unpack": Step("remote.agent.unpack", "run", RECORDED),
    "environment": Step("remote.agent.environment", "run", RECORDED),
    "snapshot": Step("remote.agent.snapshot", "run", RECORDED),
    "collect": Step("remote.agent.collect", "run", REPEATED),
    "archive": Step("remote.agent.archive", "run", READ),
    "arm": Step("remote.agent.watchdog", "arm", REPEATED),
    "contact": Step("remote.agent.watchdog", "contact", REPEATED),
    "probe": Step("remote.agent.probe", "run", REPEATED),
    "launch": Step("remote.agent.launch", "run", RECORDED),
    "status": Step("remote.agent.status", "run", READ),
    "logs": Step("remote.agent.logs", "run", READ),
    "stop": Step("remote.agent.stop", "run", REPEATED),
    "verify_run": Step("remote.agent.verify_run", "run", RECORDED),
}

# Long-running programs that a step starts: `agent.pyz NAME ARG…` calls `main(args) -> int`.
PROGRAMS: dict[str, str] = {
    "supervise": "remote.agent.supervise",
    "watchdog": "remote.agent.watchdog",
    "freeze": "remote.agent.freeze",
    "stream": "remote.agent.stream",
}
