"""`charter rentals`: what is rented, and what it has cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.output import Session, columns


def rentals(
    ctx: typer.Context,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="First compare with the providers: the sweep.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --reconcile: only list.")
    ] = False,
) -> int:
    """Every rental: who holds it, its rate, what it has cost, the provider's last word."""
    from experiment.errors import HostNotStopped
    from experiment.rentals.listing import list_rentals
    from experiment.rentals.sweep import home_sweep

    session: Session = ctx.obj
    findings: list[dict[str, Any]] = []
    if reconcile and not dry_run:
        with session.output.working("asking the providers"):
            findings = [finding.as_json() for finding in home_sweep(str(session.home.root))]
    rows = list_rentals(session.home)
    table = columns(
        ("instance", "run", "status", "rate", "started (UTC)", "cost"),
        [
            (
                row["instance"] or "none",
                row["run_id"],
                row["status"],
                f"{row['rate']} {row['currency']}/h",
                (row["started_at"] or "")[:19],
                f"{row['cost']} {row['currency']}",
            )
            for row in rows
        ],
    )
    text = table if rows else "nothing was ever rented"
    said = [f"{f['rental']}: {f['action']}, {f['reason']} {f['error']}".rstrip() for f in findings]
    session.output.result({"rentals": rows, "findings": findings}, "\n".join([text, *said]))
    unstopped = [finding["error"] for finding in findings if finding["error"]]
    if unstopped and not session.output.as_json:
        raise HostNotStopped("NOT EVERYTHING IS SETTLED", details=unstopped)
    return HostNotStopped.exit_code if unstopped else 0
