"""`charter run`, `prepare`, `approve` and `refuse`: start an experiment and answer its gate."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import Session
from experiment.errors import ApprovalNeeded, UsageError

if TYPE_CHECKING:
    from experiment.contract.model import Contract
    from experiment.ledger import RunRow
    from experiment.paths import Home

Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE, dotted: billing.max_total=5. Repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Approve within the contract's bounds.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start it and come back at once.")]
New = Annotated[bool, typer.Option("--new", help="Start a new run beside an unfinished one.")]


def run(
    ctx: typer.Context,
    contract: Annotated[str, typer.Argument(help="The contract's YAML file.")],
    yes: Yes = False,
    detach: Detach = False,
    dry_run: DryRun = False,
    new: New = False,
    sets: Set = None,
) -> int:
    """Take an experiment through its whole life. Ctrl-C detaches: training goes on."""
    return _start(ctx.obj, contract, "full", yes, detach, dry_run, new, sets)


def prepare(
    ctx: typer.Context,
    contract: Annotated[str, typer.Argument(help="The contract's YAML file.")],
    yes: Yes = False,
    detach: Detach = False,
    dry_run: DryRun = False,
    new: New = False,
    sets: Set = None,
) -> int:
    """Rent, upload, install and snapshot; nothing is launched."""
    return _start(ctx.obj, contract, "prepare", yes, detach, dry_run, new, sets)


def approve(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, or job for its newest run.")],
    comment: Annotated[str, typer.Option("--comment", help="For the record.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Approve a run that waits at its gate, within the bounds it asks for."""
    _answer(ctx.obj, run, "granted", comment, dry_run)


def refuse(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, or job for its newest run.")],
    why: Annotated[str, typer.Option("--why", help="For the record.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Refuse a run that waits at its gate: nothing is rented."""
    _answer(ctx.obj, run, "refused", why, dry_run)


def parse_sets(sets: list[str] | None) -> dict[str, str]:
    """
    Raises:
        UsageError: not of the form KEY=VALUE.
    """
    found = {}
    for item in sets or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError("--set", repr(item), expected="KEY=VALUE")
        found[key] = value
    return found


def _start(
    session: Session,
    path: str,
    goal: str,
    yes: bool,
    detach: bool,
    dry_run: bool,
    new: bool,
    sets: list[str] | None,
) -> int:
    from pathlib import Path

    from cli.follow import follow
    from deployments import server
    from experiment.contract import load_contract
    from experiment.steps.opening import open_run

    output = session.output
    contract = load_contract(Path(path), parse_sets(sets))
    if dry_run:
        _say_plan(session, contract, goal)
        return 0
    with output.working("looking for a running server") as say:
        server.up(session.home, say)
    row, continued = open_run(session.home, contract, new=new)
    if continued:
        output.message(f"going on with run {row.run_id} ({row.state})")
    if yes:
        with output.working("planning and bundling"):
            approve_now(session.home, row)
    started = start_flow(session.home, row, goal)
    data = {"job": row.job, "run_id": row.run_id, "attempt": row.attempt, **started}
    if detach:
        output.result(data, f"run {row.run_id} of {row.job}\n{started['dashboard_url']}")
        return 0
    output.message(f"run {row.run_id} of {row.job}   {started['dashboard_url']}")
    return follow(session, row.run_id, str(started["flow_run_id"]))


def approve_now(home: Home, row: RunRow) -> None:
    """`--yes`: plan and bundle here, then the grant, so that the flow finds it and never waits."""
    from deployments.gate import answer
    from experiment.steps import BEFORE_THE_GATE, RunRef, attached, walk
    from experiment.steps.opening import controlling

    ref = RunRef(str(home.root), row.run_id)
    with attached(ref) as session:
        if session.grants.current(row.run_id, row.attempt) is not None:
            return
    with controlling(ref) as held, attached(held) as session:
        walk(session, BEFORE_THE_GATE)
    answer(home, row.run_id, decision="granted", who=getpass.getuser(), comment="charter run --yes")


def start_flow(home: Home, row: RunRow, goal: str) -> dict[str, Any]:
    """A flow run for the run: the one that is under way, else a new one."""
    from deployments.flow_runs import FlowRuns
    from experiment.errors import NotFound
    from experiment.ledger import Ledger

    runs = FlowRuns(home)
    try:
        if row.flow_run:
            try:
                known = runs.get(row.flow_run)
            except NotFound:
                known = None
            if known is not None and not known.ended:
                return {"dashboard_url": known.dashboard_url, "flow_run_id": known.flow_run_id}
        parameters = {"run_id": row.run_id, "goal": goal}
        # The previous flow run is part of the key: a re-run is a new one, a repeated call is not.
        key = f"{row.run_id}-{row.attempt}-{goal}-{row.flow_run or 'first'}"
        made = runs.start(parameters, key=key, tags=[f"job:{row.job}", f"run:{row.run_id}"])
    finally:
        runs.close()
    ledger = Ledger.existing(home)
    try:
        ledger.set_flow_run(row.run_id, made.flow_run_id)
    finally:
        ledger.close()
    return {"dashboard_url": made.dashboard_url, "flow_run_id": made.flow_run_id}


def _say_plan(session: Session, contract: Contract, goal: str) -> None:
    from cli.plan import plan_text
    from experiment.contract.plan import make_plan

    made = make_plan(contract)
    body = {"dry_run": True, "goal": goal, **made.as_json()}
    session.output.result(body, f"{plan_text(made.as_json())}\nnothing was done (--dry-run)")


def _answer(session: Session, name: str, decision: str, comment: str, dry_run: bool) -> None:
    from deployments.gate import answer
    from experiment.ledger import Ledger

    ledger = Ledger.existing(session.home)
    try:
        row = ledger.resolve(name)
    finally:
        ledger.close()
    if dry_run:
        text = f"would record for run {row.run_id}: {decision}"
        session.output.result({"dry_run": True, "run_id": row.run_id, "decision": decision}, text)
        return
    who = getpass.getuser()
    grant = answer(session.home, row.run_id, decision=decision, who=who, comment=comment)
    if grant.decision != decision:
        raise ApprovalNeeded(
            "somebody answered first",
            f"run {row.run_id}",
            expected=decision,
            found=f"{grant.decision} by {grant.who} at {grant.at_utc}",
        )
    body = {"run_id": row.run_id, "attempt": row.attempt, **grant.as_evidence()}
    session.output.result(body, f"{decision}: run {row.run_id} (grant {grant.grant_id[:12]})")


def interactive() -> bool:
    """Whether a person can be asked here."""
    return sys.stdin.isatty() and sys.stderr.isatty()
