"""The gate: suspended until a person answers the typed form, here or in the terminal."""

from __future__ import annotations

import asyncio
from typing import Literal

from prefect import get_run_logger, suspend_flow_run
from prefect.artifacts import create_markdown_artifact
from prefect.input import RunInput
from pydantic import Field, ValidationError

from experiment.approval.grants import GRANTED, REFUSED, Grant
from experiment.errors import ApprovalNeeded
from experiment.steps import RunRef, attached
from experiment.steps.approve import asked, preauthorise, quote

TIMEOUT_SECONDS = 24 * 3600
TRIES = 5


class Approval(RunInput):
    """What a person answers. The plan is in the form's text."""

    decision: Literal["approve", "refuse"] = Field(
        description="approve: spend within the bounds shown. refuse: nothing is rented."
    )
    who: str = Field(default="", description="Your name, for the record.", max_length=200)
    comment: str = Field(default="", description="Anything to remember.", max_length=2000)


def gate(ref: RunRef) -> Grant:
    """The answer for this attempt, from the ledger where it is there already.

    Suspends the flow run: its process ends, and a resume starts the flow from the top.

    Raises:
        ApprovalNeeded: no valid answer after several forms.
    """
    for number in range(1, TRIES + 1):
        with attached(ref) as session:
            grant = session.grants.current(session.run_id, session.attempt)
            grant = grant or preauthorise(session)
            if grant is not None:
                return grant
            text = quote(session)
            key = f"approve-{session.attempt}-{number}"
            slug = f"plan-{session.job}"
        answer = _ask(text, key, slug)
        if answer is not None:
            return _record(ref, answer)
    raise ApprovalNeeded(
        "no valid answer", f"run {ref.run_id}", hint=f"charter approve {ref.run_id}"
    )


def _ask(text: str, key: str, slug: str) -> Approval | None:
    create_markdown_artifact(text, key=slug, description="What is asked at the billing gate")
    form = Approval.with_initial_data(description=text)
    try:
        given = suspend_flow_run(wait_for_input=form, key=key, timeout=TIMEOUT_SECONDS)
        if asyncio.iscoroutine(given):
            raise TypeError("the gate is for flows that are not async")
        return given
    except ValidationError as error:
        get_run_logger().warning("the answer did not fit the form, asking again: %s", error)
        return None


def _record(ref: RunRef, answer: Approval) -> Grant:
    with attached(ref) as session:
        bounds = asked(session)
        return session.grants.answer(
            session.run_id,
            decision=GRANTED if answer.decision == "approve" else REFUSED,
            who=answer.who or "somebody in the dashboard",
            channel="dashboard",
            quote=quote(session),
            comment=answer.comment,
            bounds=bounds,
            asked=bounds,
            digests=session.digests(),
        )
