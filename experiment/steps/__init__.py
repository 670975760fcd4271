"""The life of a run as a table: what happens, in which order, and what each step does.

`walk` goes through it without Prefect; the flow goes through the same table with Prefect tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from experiment.errors import (
    ApprovalNeeded,
    CharterError,
    Fenced,
    HostUnreachable,
    Interrupted,
    StepTimeout,
    Uncertain,
)
from experiment.ledger import Evidence, states
from experiment.steps.approve import approve
from experiment.steps.arm import arm
from experiment.steps.bundle import bundle
from experiment.steps.collect import collect
from experiment.steps.environment import environment
from experiment.steps.launch import launch
from experiment.steps.monitor import monitor
from experiment.steps.plan import plan
from experiment.steps.preflight import preflight, preflight_full
from experiment.steps.rent import rent
from experiment.steps.seal import seal
from experiment.steps.session import RunRef, Session, attached
from experiment.steps.shutdown import shutdown
from experiment.steps.snapshot import snapshot
from experiment.steps.store import store
from experiment.steps.upload import upload
from experiment.steps.verify import verify

# `resume`, the next attempt of a failed run, comes with a later version.
Goal = Literal["full", "prepare", "collect", "shutdown"]


@dataclass(frozen=True)
class Step:
    """One row of the table.

    Args:
        name: the same in ledger, plan, task, evidence and tests.
        act: the library function.
    """

    name: str
    act: Callable[[Session], Evidence]


BEFORE_THE_GATE = (
    Step("plan", plan),
    Step("bundle", bundle),
)

AFTER_THE_GATE = (
    Step("approve", approve),
    Step("rent", rent),
    Step("arm", arm),
    Step("preflight", preflight),
    Step("upload", upload),
    Step("environment", environment),
    Step("snapshot", snapshot),
    Step("preflight_full", preflight_full),
    Step("launch", launch),
    Step("monitor", monitor),
    Step("collect", collect),
    Step("verify", verify),
    Step("shutdown", shutdown),
    Step("store", store),
    Step("seal", seal),
)

TABLE = BEFORE_THE_GATE + AFTER_THE_GATE

_LAUNCHING = ("preflight", "upload", "environment", "snapshot", "preflight_full")
# Where a refusal means that this attempt cannot go on as it is.
_FAILING = ("plan", "bundle", "rent", "arm", *_LAUNCHING, "launch", "monitor")


def needed(step: Step, session: Session, goal: Goal) -> bool:
    """Whether a walk has to call the step now.

    What led to a launch is not looked at again once the attempt was launched: a trainer that
    works must not be disturbed. A failed attempt goes nowhere by itself, a partial run or a salvage
    goes no further.
    """
    state = session.state()
    if state == states.FAILED:
        return False
    if step.name == "shutdown" and session.contract.billing.shutdown == "keep":
        return False
    if step.name in _LAUNCHING and session.is_done("launch"):
        return False
    if step.name == "arm" and (session.is_done("monitor") or session.is_done("shutdown")):
        return False
    if goal == "prepare" and step.name in _names_from("preflight_full"):
        return False
    if step.name in _names_from("collect"):
        return state != states.PARTIAL and not _salvage(session, state)
    return True


def _salvage(session: Session, state: str | None) -> bool:
    """Files collected from a run that did not complete: nothing is verified, stored or sealed."""
    history = session.ledger.history(session.run_id)
    return state == states.COLLECTED and not states.completed_before_collection(history)


def fails(step: Step, error: CharterError) -> bool:
    """Whether the error ends the attempt. Unreachable, fenced, uncertain, unapproved never do."""
    passing: tuple[type[CharterError], ...] = (HostUnreachable, Fenced, Uncertain, Interrupted)
    if step.name != "rent":
        # What was rented above the approved rate is released again: that attempt is over.
        passing += (ApprovalNeeded,)
    if step.name == "launch":
        # It may run: the next walk asks the agent before anything else.
        passing += (StepTimeout,)
    return step.name in _FAILING and not isinstance(error, passing)


def record_error(session: Session, step: Step, error: CharterError) -> None:
    """Write down what stopped the walk; enter FAILED where that ends the attempt.

    A fenced controller writes nothing: the ledger is another one's now.
    """
    if isinstance(error, Fenced):
        return
    evidence = {"step": step.name, "error": error.as_json()}
    state = session.state()
    with suppress(Fenced):
        if fails(step, error) and state is not None and states.FAILED in states.FOLLOWERS[state]:
            session.controller.enter(step.name, states.FAILED, evidence)
        else:
            session.controller.note("error", evidence)


def walk(session: Session, steps: tuple[Step, ...] = TABLE, goal: Goal = "full") -> str | None:
    """Go through the steps that are needed, without Prefect.

    Returns:
        The run's state afterwards.

    Raises:
        CharterError: what stopped it, recorded.
    """
    for step in steps:
        if not needed(step, session, goal):
            continue
        try:
            step.act(session)
        except CharterError as error:
            record_error(session, step, error)
            raise
    return session.state()


def _names_from(first: str) -> tuple[str, ...]:
    names = [step.name for step in TABLE]
    return tuple(names[names.index(first) :])


__all__ = [
    "AFTER_THE_GATE",
    "BEFORE_THE_GATE",
    "TABLE",
    "Goal",
    "RunRef",
    "Session",
    "Step",
    "attached",
    "fails",
    "needed",
    "record_error",
    "walk",
]
