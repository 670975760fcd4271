"""`charter list`, `status` and `logs`: look at runs. Nothing is changed."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cli.output import Session, columns
from experiment.errors import HostUnreachable

Run = Annotated[str, typer.Argument(help="Run id, or job for its newest run.")]

WATCH_SECONDS = 2.0
# In these a flow is at work or a person is waited for; the others stay as they are.
_MOVING = (
    None,
    "PLANNED",
    "PREPARED",
    "RENTED",
    "UPLOADED",
    "BOOTSTRAPPING",
    "RUNNING",
    "COMPLETED",
)


def list_(ctx: typer.Context) -> None:
    """Every run, newest first."""
    from experiment.steps.looking import list_runs

    session: Session = ctx.obj
    rows = list_runs(session.home)
    table = columns(
        ("run", "job", "state", "started (UTC)", "cost"),
        [
            (
                row["run_id"],
                row["job"],
                row["state"] or "new",
                row["started_at"][:19],
                f"{row['cost']} {row['currency']}",
            )
            for row in rows
        ],
    )
    session.output.result({"runs": rows}, table if rows else "no runs yet: charter run CONTRACT")


def status(
    ctx: typer.Context,
    run: Run,
    watch: Annotated[bool, typer.Option("--watch", help="Again whenever it changes.")] = False,
) -> int:
    """What state a run is in, and why. Exit 75 when its host does not answer."""
    from experiment.steps.looking import look

    session: Session = ctx.obj
    shown = ""
    while True:
        found = look(session.home, run)
        if found.error is not None and not watch:
            if session.output.as_json:
                session.output.result({**found.body, "error": found.error.as_json()})
                return HostUnreachable.exit_code
            session.output.result(found.body, status_text(found.body))
            return session.output.failure(found.error)
        text = status_text(found.body, found.tail)
        if text != shown:
            session.output.line(found.body, text)
            shown = text
        if not watch or found.body["state"] not in _MOVING:
            return 0
        time.sleep(WATCH_SECONDS)


def logs(
    ctx: typer.Context,
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run ends.")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="The last lines.")] = 200,
) -> None:
    """The trainer's log: from the host, or as it was collected."""
    from experiment.steps.looking import read_log

    session: Session = ctx.obj
    part = read_log(session.home, run, tail=tail)
    _print_part(session, part, follow)
    while follow and not part["ended"]:
        time.sleep(1.0)
        try:
            part = read_log(session.home, run, offset=int(part["next_offset"]))
        except HostUnreachable as error:
            session.output.message(f"host unreachable, the run goes on: {error}")
            continue
        _print_part(session, part, follow)


def _print_part(session: Session, part: dict[str, Any], follow: bool) -> None:
    body = {"text": part["text"], "next_offset": part["next_offset"]}
    if follow and not part["text"]:
        return
    session.output.line(body, str(part["text"]).rstrip("\n"))


def status_text(body: dict[str, Any], tail: list[str] | None = None) -> str:
    """A status as a person reads it."""
    lines = [
        f"{body['job']}  run {body['run_id']}  attempt {body['attempt']}",
        f"state     {body['state'] or 'new'}   verdict {body['verdict']}"
        + (f" ({body['reason']})" if body["reason"] else ""),
        f"approval  {body['approval']}",
    ]
    if body["step"] is not None:
        of = f" of {body['total_steps']}" if body["total_steps"] else ""
        lines.append(f"step      {body['step']}{of}")
    host = body["host"]
    if host:
        address = f" at {host['address']}" if host["address"] else ""
        lines.append(f"host      {host['provider']} {host['instance']} {host['state']}{address}")
    rental = body["rental"]
    if rental:
        cap = f" of {rental['cap']}" if rental["cap"] else ""
        lines.append(
            f"rental    {rental['status']}, {rental['rate']} {rental['currency']}/h, "
            f"spent {rental['spent']}{cap} {rental['currency']}"
            + (f", off by {rental['deadline'][:19]} UTC" if rental["deadline"] else "")
        )
    raised = (True, "unavailable")
    flags = [name for name, value in body["flags"].items() if value in raised]
    if flags:
        lines.append(f"flags     {', '.join(flags)}")
    if body["results"]:
        lines.append(f"results   {body['results']}")
    if body["error"]:
        lines.append(f"error     {body['error']['message']}")
    if tail:
        lines += ["", *tail[-8:]]
    return "\n".join(lines)
