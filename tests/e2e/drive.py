"""A controller process without Prefect: opens the run, approves by contract, walks the table.

    python -m tests.e2e.drive HOME CONTRACT

Prints the state at the end. `CHARTER_FAULT` kills or stops it at a named point on the way.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiment.contract import load_contract
from experiment.errors import CharterError
from experiment.ledger import Ledger
from experiment.paths import Home
from experiment.steps import AFTER_THE_GATE, BEFORE_THE_GATE, RunRef, attached, walk
from experiment.steps.approve import preauthorise
from experiment.steps.opening import controlling, open_run


def main(root: str, contract: str) -> str | None:
    """The run's state after everything that could be done."""
    home = Home(Path(root))
    newest = Ledger.open(home).newest(load_contract(Path(contract)).job)
    if newest is not None and newest.finished:
        return newest.state
    row, _ = open_run(home, load_contract(Path(contract)))
    ref = RunRef(str(home.root), row.run_id)
    with controlling(ref) as held, attached(held) as session:
        walk(session, BEFORE_THE_GATE)
    with attached(ref) as session:
        preauthorise(session)
    with controlling(ref) as held, attached(held) as session:
        return walk(session, AFTER_THE_GATE)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1], sys.argv[2]))
    except CharterError as error:
        print(error.line(), file=sys.stderr)
        sys.exit(error.exit_code)
