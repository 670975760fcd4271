"""Following a run to its end in the terminal: its states, and the gate's question."""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from cli.output import Session, columns
from cli.run import interactive
from experiment.errors import CharterError, Interrupted

if TYPE_CHECKING:
    from deployments.flow_runs import FlowRun
    from experiment.ledger import Ledger, RunRow

POLL_SECONDS = 0.4
HELD = "held by another controller"

# A row then fits 80 columns; --json and the ledger have the whole digest.
DIGEST_SHOWN = 24


def follow(session: Session, run_id: str, flow_run_id: str) -> int:
    """Print what happens until the flow run ends.

    Returns:
        0 for VERIFIED or SHUTDOWN (or the asked goal reached), else the recorded error's code.

    Raises:
        Interrupted: Ctrl-C; the run goes on without this terminal.
    """
    from deployments.flow_runs import FlowRuns
    from experiment.ledger import Ledger

    ledger = Ledger.existing(session.home)
    runs = FlowRuns(session.home)
    try:
        flow_run = _until_ended(session, ledger, runs, run_id, flow_run_id)
        while flow_run.kind == "FAILED" and HELD in flow_run.message:
            # Another flow run (the sweep's, say) holds the job: that one is the one to follow.
            other = ledger.run(run_id).flow_run
            if other is None or other == flow_run.flow_run_id:
                break
            flow_run = _until_ended(session, ledger, runs, run_id, other)
        row = ledger.run(run_id)
        return _finish(session, ledger, row, flow_run)
    except KeyboardInterrupt:
        raise Interrupted(
            "detached",
            f"run {run_id}",
            hint=f"it goes on; `charter status {run_id}`, `charter run` to follow again",
        ) from None
    finally:
        runs.close()
        ledger.close()


def _until_ended(
    session: Session, ledger: Ledger, runs: Any, run_id: str, flow_run_id: str
) -> FlowRun:
    """Follow, and ask at the gate once. No spinner turns while a question stands there."""
    seen = _Seen()
    flow_run = _until(session, ledger, runs, run_id, flow_run_id, seen, at_gate=True)
    if flow_run.suspended:
        _gate(session, run_id, flow_run)
        flow_run = _until(session, ledger, runs, run_id, flow_run_id, seen, at_gate=False)
    return flow_run


@dataclass
class _Seen:
    """How many entries were shown already."""

    entries: int = 0


def _until(
    session: Session,
    ledger: Ledger,
    runs: Any,
    run_id: str,
    flow_run_id: str,
    seen: _Seen,
    *,
    at_gate: bool,
) -> FlowRun:
    with session.output.working(f"run {run_id}: waiting for the runner") as say:
        while True:
            flow_run: FlowRun = runs.get(flow_run_id)
            entries = ledger.entries(run_id)
            for entry in entries[seen.entries :]:
                if entry["to"]:
                    session.output.message(_line(entry))
                elif entry["phase"] == "intent":
                    say(f"run {run_id}: {entry['step']}")
            seen.entries = len(entries)
            if flow_run.ended or (at_gate and flow_run.suspended):
                return flow_run
            time.sleep(POLL_SECONDS)


def _gate(session: Session, run_id: str, flow_run: FlowRun) -> None:
    """Ask here where somebody can answer; else say where to."""
    from deployments.gate import answer
    from experiment.steps import RunRef, attached
    from experiment.steps.approve import quote

    with attached(RunRef(str(session.home.root), run_id)) as opened:
        text = quote(opened)
    session.output.message(_plain(text))
    if session.output.as_json or not interactive():
        session.output.message(
            f"waiting for approval: `charter approve {run_id}`, or Resume in the dashboard: "
            f"{flow_run.dashboard_url}"
        )
        return
    agreed = typer.confirm("approve spending within these bounds?", default=False, err=True)
    answer(
        session.home,
        run_id,
        decision="granted" if agreed else "refused",
        who=getpass.getuser(),
        comment="answered in the terminal",
    )


def _plain(markdown: str) -> str:
    """The gate's Markdown table as aligned columns."""
    rows = []
    rest = []
    for line in markdown.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if any(cell.strip("-") for cell in cells):
                rows.append(cells)
        elif line.strip():
            rest.append(line)
    width = max(len(row[0]) for row in rows)
    return "\n".join([*(f"  {row[0].ljust(width)}  {row[1]}" for row in rows), *rest])


def _line(entry: dict[str, Any]) -> str:
    return f"{entry['at_utc'][11:19]}  {entry['to']:<14} {entry['step']}"


def _finish(session: Session, ledger: Ledger, row: RunRow, flow_run: FlowRun) -> int:
    entries = ledger.entries(row.run_id)
    done = [e for e in entries if e["phase"] == "done" or e["to"]]
    body = summary(session, row, entries)
    table = columns(
        ("state", "step", "at (UTC)", f"sha256, first {DIGEST_SHOWN}"),
        [(e["to"] or "", e["step"], e["at_utc"][:19], e["sha256"][:DIGEST_SHOWN]) for e in done],
    )
    good = flow_run.kind == "COMPLETED"
    if good:
        cost = f"{body['cost']['amount']} {body['cost']['currency']}"
        lines = [f"\n{table}\n", f"{row.state}   cost {cost} (estimate)"]
        lines.append(f"results {body['results']}")
        if body["involves_ssh"] is False:
            lines.append("no SSH was involved: this machine has no sshd that could be used")
        session.output.result(body, "\n".join(lines))
        return 0
    session.output.message(f"\n{table}\n")
    raise _error(row, body["error"], flow_run)


def summary(session: Session, row: RunRow, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The end of a run as JSON: state, cost, results, what went wrong."""
    from experiment.steps import RunRef, attached
    from experiment.steps.looking import last_error
    from experiment.steps.shutdown import cost_of

    with attached(RunRef(str(session.home.root), row.run_id)) as opened:
        cost = dict(cost_of(opened))
        results = str(opened.results) if opened.results.is_dir() else None
    return {
        "job": row.job,
        "run_id": row.run_id,
        "attempt": row.attempt,
        "state": row.state,
        "cost": cost,
        "results": results,
        "stored": any(e["step"] == "store" and e["phase"] == "done" for e in entries),
        "involves_ssh": next(
            (e["evidence"]["involves_ssh"] for e in entries if e["to"] == "RENTED"), None
        ),
        "error": last_error(entries),
        "entries": [
            {key: e[key] for key in ("seq", "step", "to", "at_utc", "sha256")}
            for e in entries
            if e["phase"] == "done" or e["to"]
        ],
    }


def _error(row: RunRow, recorded: dict[str, Any] | None, flow_run: FlowRun) -> CharterError:
    """The recorded error again, with its own kind and exit code."""
    from experiment.errors import ApprovalRefused

    if recorded is not None:
        hint = str(recorded.get("hint", ""))
        error = CharterError(
            str(recorded.get("message", "failed")).removesuffix(f"; {hint}"),
            exit_code=int(recorded.get("exit_code", 1)),
            hint=hint,
            details=tuple(recorded.get("details") or recorded.get("tail") or ()),
        )
        error.kind = str(recorded.get("kind", "error"))
        return error
    if flow_run.kind == "CANCELLED" and "refused" in flow_run.message:
        return ApprovalRefused("run refused", f"run {row.run_id}", found=flow_run.message)
    return CharterError(
        "the flow run ended early",
        f"run {row.run_id} ({row.state})",
        found=f"{flow_run.name}: {flow_run.message}",
        hint="nothing on the host was stopped; charter run again goes on with it",
    )
