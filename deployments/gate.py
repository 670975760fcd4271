"""The terminal's side of the gate: the same answer as the dashboard's form, ledger first."""

from __future__ import annotations

from deployments.flow_runs import FlowRuns
from experiment.approval.grants import GRANTED, Grant
from experiment.errors import ApprovalNeeded, HostUnreachable
from experiment.paths import Home
from experiment.steps import RunRef, attached
from experiment.steps.approve import asked, quote


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
            quote=comment or quote(session),
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
    try:
        if runs.get(flow_run_id).suspended:
            word = "approve" if grant.decision == GRANTED else "refuse"
            runs.resume(flow_run_id, {"decision": word, "who": grant.who, "comment": ""})
    finally:
        runs.close()
