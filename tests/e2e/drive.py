"""A controller process without Prefect: opens the run, approves by contract, walks the table.

Prints the state at the end. `CHARTER_FAULT` kills or stops it at a named point on the way. Tests
fork it from a server process that has the library imported already.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Loaded before the fork: the report's pictures would cost every controller two seconds.
import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401

from experiment.contract import load_contract
from experiment.errors import CharterError
from experiment.ledger import Ledger
from experiment.paths import Home
from experiment.steps import AFTER_THE_GATE, BEFORE_THE_GATE, RunRef, attached, walk
from experiment.steps.approve import preauthorise
from experiment.steps.opening import controlling, is_over, open_run


def main(root: str, contract: str) -> str | None:
    """The run's state after everything that could be done."""
    home = Home(Path(root))
    ledger = Ledger.open(home)
    newest = ledger.newest(load_contract(Path(contract)).job)
    if newest is not None and is_over(ledger, newest):
        return newest.state
    row, _ = open_run(home, load_contract(Path(contract)))
    ref = RunRef(str(home.root), row.run_id)
    with controlling(ref) as held, attached(held) as session:
        walk(session, BEFORE_THE_GATE)
    with attached(ref) as session:
        preauthorise(session)
    with controlling(ref) as held, attached(held) as session:
        return walk(session, AFTER_THE_GATE)


def child(environ: dict[str, str], out: str, err: str, root: str, contract: str) -> None:
    """The whole of a controller process that a test forks: its environment, output and exit."""
    os.environ.clear()
    os.environ.update(environ)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    try:
        print(main(root, contract), flush=True)
    except CharterError as error:
        print(error.line(), file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
