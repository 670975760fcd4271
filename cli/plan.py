"""`charter init`, `plan` and `bundle`: everything before money."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import Session, columns
from cli.run import DryRun, Set, interactive, parse_sets


def init(
    ctx: typer.Context,
    directory: Annotated[str, typer.Argument(help="The project's folder.")],
    yes: Annotated[bool, typer.Option("--yes", help="Write it without asking.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Propose a contract for a project: every value guessed is shown with its reason."""
    from experiment.contract.inspect import inspect_project, write_proposal
    from experiment.contract.render import render
    from experiment.errors import ApprovalNeeded

    session: Session = ctx.obj
    proposal = inspect_project(Path(directory))
    target = Path(directory) / "contract.yaml"
    body = {"path": str(target), "guesses": proposal.guesses, "contract": proposal.contract}
    table = columns(
        ("key", "value", "why"), [(g["key"], g["value"], g["why"]) for g in proposal.guesses]
    )
    if dry_run:
        session.output.result({**body, "dry_run": True}, f"{table}\nwould write {target}")
        return
    session.output.message(table)
    if not yes:
        if session.output.as_json or not interactive():
            raise ApprovalNeeded("contract not written", str(target), hint="add --yes")
        typer.confirm(f"write {target}?", abort=True, err=True)
    write_proposal(render(proposal), Path(directory))
    session.output.result(body, f"wrote {target}; next: charter plan {target}")


def plan(
    ctx: typer.Context,
    contract: Annotated[str, typer.Argument(help="The contract's YAML file.")],
    sets: Set = None,
) -> None:
    """The resolved contract, the steps, the worst-case cost, warnings. Changes nothing."""
    from experiment.contract import load_contract
    from experiment.contract.plan import make_plan

    session: Session = ctx.obj
    made = make_plan(load_contract(Path(contract), parse_sets(sets))).as_json()
    session.output.result(made, plan_text(made))


def bundle(
    ctx: typer.Context,
    contract: Annotated[str, typer.Argument(help="The contract's YAML file.")],
    out: Annotated[str, typer.Option("--out", "--output-dir", help="Where the files go.")],
    sets: Set = None,
    dry_run: DryRun = False,
) -> None:
    """The payload and its manifest, secret-scanned and reproducible."""
    from experiment.bundle import build_bundle
    from experiment.contract import load_contract

    session: Session = ctx.obj
    loaded = load_contract(Path(contract), parse_sets(sets))
    if dry_run:
        session.output.result({"dry_run": True, "out": out}, f"would write the bundle into {out}")
        return
    made = build_bundle(loaded, Path(out))
    body = {
        "files": made.files,
        "tree_sha256": made.tree_sha256,
        "project_file_count": made.manifest["project_file_count"],
        "excluded": made.excluded,
        "largest": made.largest,
    }
    table = columns(
        ("file", "bytes", "sha256"), [(f["path"], f["bytes"], f["sha256"]) for f in made.files]
    )
    session.output.result(body, f"{table}\ntree {made.tree_sha256}")


def plan_text(made: dict[str, Any]) -> str:
    """A plan as a person reads it."""
    import yaml

    worst = made["worst_case"]
    steps = columns(("step", "does"), [(s["name"], s["does"]) for s in made["steps"]])
    warnings = "".join(f"\nwarning: {w['key']}: {w['message']}" for w in made["warnings"])
    contract = yaml.safe_dump(made["contract"], sort_keys=False, allow_unicode=True).rstrip()
    return (
        f"{contract}\n\ncontract sha256 {made['contract_sha256']}\n\n{steps}\n\n"
        f"worst case {worst['amount']} {worst['currency']} in {worst['hours']} h{warnings}"
    )
