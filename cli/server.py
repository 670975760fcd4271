"""`charter up`, `down` and `doctor`: this machine and the services of one home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import Session, columns
from experiment.errors import GuardRefused

if TYPE_CHECKING:
    from deployments.server import Server
    from experiment.checks.outcome import Outcome
    from experiment.paths import Home

COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow"}

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; do nothing.")]


def up(ctx: typer.Context, dry_run: DryRun = False) -> None:
    """Start the Prefect server and both runners on loopback, if they do not run yet."""
    from deployments import server

    session: Session = ctx.obj
    if dry_run:
        found = server.inspect(session.home)
        missing = [name for name, pid in found.runners.items() if pid is None]
        missing = ["server", *missing] if not found.answers else missing
        text = f"would start: {', '.join(missing)}" if missing else "all of it runs already"
        session.output.result({"dry_run": True, "would_start": missing}, text)
        return
    with session.output.working("looking for a running server") as say:
        found = server.up(session.home, say)
    session.output.result(_as_json(found), _as_text(found))


def down(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about open rentals.")] = False,
    dry_run: DryRun = False,
) -> None:
    """End the server and the runners. Hosts, and what runs on them, go on."""
    from deployments import server

    session: Session = ctx.obj
    rented = _open_rentals(session.home)
    if dry_run:
        found = server.inspect(session.home)
        running = [name for name, pid in found.runners.items() if pid is not None]
        running += ["server"] if found.pid else []
        text = f"would end: {', '.join(running) or 'nothing'}"
        data = {"dry_run": True, "would_end": running, "open_rentals": rented}
        session.output.result(data, "\n".join([text, *_warning(rented)]))
        return
    if rented and not yes:
        _confirm(session, rented)
    with session.output.working("ending") as say:
        ended = server.down(session.home, say)
    text = f"ended: {', '.join(ended.stopped)}" if ended.stopped else "nothing was running"
    if ended.killed:
        text += f" (killed after the grace: {', '.join(ended.killed)})"
    session.output.result({"stopped": ended.stopped, "killed": ended.killed}, text)


def doctor(ctx: typer.Context) -> int:
    """Check this machine, the home and the server; say the fix for each finding. Exit 1 on FAIL."""
    from deployments import server
    from experiment.checks import doctor as checks

    session: Session = ctx.obj
    with session.output.working("checking"):
        outcomes = [*checks.examine(session.home), *server.examine(session.home)]
    data = {"checks": [outcome.as_json() for outcome in outcomes]}
    session.output.result(data, "\n".join(_report(session, outcome) for outcome in outcomes))
    return 1 if any(outcome.status == "FAIL" for outcome in outcomes) else 0


def _report(session: Session, outcome: Outcome) -> str:
    status = session.output.paint(outcome.status.value, COLOURS[outcome.status.value])
    line = f"{status}  {outcome.name:<18}  {outcome.detail()}"
    if outcome.status == "SKIP":
        return f"{line}; {outcome.fix}" if outcome.fix else line
    return f"{line}\n{'':26}fix: {outcome.fix}" if outcome.fix else line


def _as_json(found: Server) -> dict[str, object]:
    return {
        "url": found.url,
        "dashboard": found.dashboard,
        "password_file": found.password_file,
        "pid": found.pid,
        "runners": dict(found.runners),
        "started": list(found.started),
    }


def _as_text(found: Server) -> str:
    rows: list[tuple[str, object]] = [("server", found.pid), *found.runners.items()]
    state = ["started" if name in found.started else "running" for name, _pid in rows]
    table = [(name, pid, word) for (name, pid), word in zip(rows, state, strict=True)]
    return "\n".join(
        [
            columns(("process", "pid", "state"), table),
            f"dashboard  {found.dashboard}",
            f"password   the line in {found.password_file}",
            "stop       charter down",
        ]
    )


def _open_rentals(home: Home) -> list[str]:
    """Names of the rentals that may be billing; none where there is no ledger yet."""
    from experiment.errors import NotFound
    from experiment.ledger.ledger import Ledger
    from experiment.rentals.book import Rentals

    try:
        ledger = Ledger.existing(home)
    except NotFound:
        return []
    try:
        return [rental.name for rental in Rentals(ledger).live()]
    finally:
        ledger.close()


def _warning(rented: list[str]) -> list[str]:
    if not rented:
        return []
    names = ", ".join(rented)
    return [f"open rentals: {names}; without the sweep only their own watchdogs stop them"]


def _confirm(session: Session, rented: list[str]) -> None:
    """Ask on a terminal; refuse where nobody can answer.

    Raises:
        GuardRefused: not confirmed.
    """
    import sys

    hint = "`charter rentals` shows them; `charter down --yes` ends the server all the same"
    if session.output.as_json or not sys.stdin.isatty():
        raise GuardRefused("rentals are open", ", ".join(rented), hint=hint)
    for line in _warning(rented):
        session.output.message(line)
    if not typer.confirm("End the server and the runners?", err=True):
        raise GuardRefused("not confirmed", "charter down", hint=hint)
