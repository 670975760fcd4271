"""`charter verify`: check results offline, without server or network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import Session


def verify(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(help="Run id, job, results folder or archive.")],
    key: Annotated[
        str, typer.Option("--key", help="Public key that the signature must be of.")
    ] = "",
) -> int:
    """Re-hash everything and check the seal. Exit 2 names each broken file, 3 a missing path."""
    from experiment.errors import NotFound, UsageError
    from experiment.evidence.keys import known_keys
    from experiment.evidence.verify import VerifyError, verify_path

    session: Session = ctx.obj
    path = _path(session, what)
    if not path.exists():
        raise NotFound("nothing to verify", str(path), expected="a results folder or archive")
    pub = Path(key) if key else None
    if pub is not None and not pub.is_file():
        raise NotFound("no such key", str(pub), expected="a public key file")
    try:
        report = verify_path(path, pub=pub, known_keys=known_keys(session.home))
    except VerifyError as error:
        raise UsageError(str(error), hint=error.hint, exit_code=error.exit_code) from error
    session.output.result(report, _text(path, report))
    return 0 if report["ok"] else 2


def _path(session: Session, what: str) -> Path:
    """A path where there is one, else the results folder of a run."""
    from experiment.errors import NotFound
    from experiment.ledger import Ledger

    given = Path(what)
    if given.exists():
        return given
    try:
        ledger = Ledger.existing(session.home)
    except NotFound:
        return given
    try:
        row = ledger.resolve(what)
    except NotFound:
        return given
    finally:
        ledger.close()
    return session.home.results(row.job, row.run_id)


def _text(path: Path, report: dict[str, Any]) -> str:
    signer = report["signer"]
    who = "unsigned"
    if signer["key_id"]:
        who = f"signed by {signer['key_id'][:16]} ({'pinned' if signer['pinned'] else 'unpinned'})"
    if report["ok"]:
        return f"ok: {report['checked']} checked in {path}, {who}"
    lines = [
        f"broken: {item['path']} ({item['link']}): expected {item['expected']}, "
        f"found {item['found']}"
        for item in report["broken"]
    ]
    return "\n".join([*lines, f"{len(report['broken'])} broken of {report['checked']}, {who}"])
