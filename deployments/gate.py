"""The terminal's side of the gate: the same answer as the dashboard's form, ledger first."""

from __future__ import annotations

import time

from deployments.flow_runs import FlowRuns
from experiment.approval.grants import GRANTED, Grant
from experiment.errors import ApprovalNeeded, HostUnreachable, NotFound
from experiment.paths import Home
from experiment.steps import RunRef, attached
from experiment.steps.approve import asked, quote

WAKE_SECONDS = 15.0


def answer(home: Home, run_id: str, *, decision: str, who: str, comment: str = "") -> Grant:
    """Record the answer, then wake the flow run that waits for it.

    In this order: a controller that dies in between finds the answer in the ledger, and nobody is
    asked twice.

    Returns:
        the answer that counts, which is an earlier one where somebody was first.

    Raises:
        ApprovalNeeded: the run has no bundle yet: there is nothing to approve.
    """
    with attached(RunRef(str(home.root), run_id)) as session:
        if not session.is_done("bundle"):
            raise ApprovalNeeded(
                "nothing to approve yet",
                f"run {run_id}",
                expected="a planned and bundled run",
                found=str(session.state()),
                hint="charter status",
            )
        bounds = asked(session)
        grant = session.grants.answer(
            run_id,
            decision=decision,
            who=who,
            channel="terminal",
            quote=quote(session),
            comment=comment,
            bounds=bounds,
            asked=bounds,
            digests=session.digests(),
        )
        flow_run = session.run.flow_run
    if flow_run:
        _wake(home, flow_run, grant)
    return grant


def _wake(home: Home, flow_run_id: str, grant: Grant) -> None:
    try:
        runs = FlowRuns(home)
    except HostUnreachable:
        # Without a server nothing waits; the next flow run reads the ledger.
        return
    word = "approve" if grant.decision == GRANTED else "refuse"
    give_up = time.monotonic() + WAKE_SECONDS
    try:
        while time.monotonic() < give_up:
            found = runs.get(flow_run_id)
            if found.suspended:
                runs.resume(flow_run_id, {"decision": word, "who": grant.who, "comment": ""})
                return
            if found.ended or _past_the_gate(home, grant):
                return
            # It looked for a grant before there was one, and is about to suspend.
            time.sleep(0.2)
    except NotFound:
        # A flow run of a server that is no more: nothing waits.
        return
    finally:
        runs.close()


def _past_the_gate(home: Home, grant: Grant) -> bool:
    with attached(RunRef(str(home.root), grant.run_id)) as session:
        return session.was_begun("approve")
