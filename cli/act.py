"""`charter stop`, `collect` and `shutdown`: act on one run."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import typer

from cli.output import Session

Run = Annotated[str, typer.Argument(help="Run id, or job for its newest run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; do nothing.")]


def stop(
    ctx: typer.Context,
    run: Run,
    force: Annotated[bool, typer.Option("--force", help="KILL what does not end on TERM.")] = False,
    dry_run: DryRun = False,
) -> None:
    """End the trainer (TERM, time to checkpoint). The host stays on: see shutdown."""
    from experiment.steps.orders import stop_trainer

    session: Session = ctx.obj
    found = stop_trainer(session.home, run, force=force, who=getpass.getuser(), dry_run=dry_run)
    session.output.result(found, _stop_text(found))


def collect(ctx: typer.Context, run: Run, dry_run: DryRun = False) -> None:
    """Bring the run's files here. From a failed or partial run it is a salvage."""
    from experiment.steps.orders import collect_run

    session: Session = ctx.obj
    with session.output.working("collecting"):
        found = collect_run(session.home, run, dry_run=dry_run)
    text = (
        f"would collect from {found['state']}"
        if dry_run
        else f"{found['state']}: {found['file_count']} files in {found['results']}"
    )
    session.output.result(found, text)


def shutdown(
    ctx: typer.Context,
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop the meter of a run's host, and wait for the provider to confirm it."""
    from cli.run import interactive
    from experiment.errors import ApprovalNeeded
    from experiment.steps.orders import shutdown_run

    session: Session = ctx.obj
    planned = shutdown_run(session.home, run, who=getpass.getuser(), dry_run=True)
    if dry_run:
        session.output.result(planned, f"would power off {planned['instance']}")
        return
    if not yes:
        if session.output.as_json or not interactive():
            raise ApprovalNeeded("shutdown needs a yes", str(planned["instance"]), hint="add --yes")
        typer.confirm(f"power off {planned['instance']}?", abort=True, err=True)
    with session.output.working(f"stopping {planned['instance']}"):
        found = shutdown_run(session.home, run, who=getpass.getuser(), dry_run=False)
    cost = f"{found['cost']['amount']} {found['cost']['currency']}"
    when = found["receipt"]["confirmed_at"]
    session.output.result(found, f"off: {found['instance']}, confirmed {when}, cost {cost}")


def _stop_text(found: dict[str, Any]) -> str:
    if found.get("dry_run"):
        return f"would send TERM to the trainer of run {found['run_id']}"
    return f"{'ended' if found['exited'] else 'TERM sent, still alive'}: run {found['run_id']}"
