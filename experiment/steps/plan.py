"""plan: the resolved contract, and everything from outside pinned, so that an approval binds it."""

from __future__ import annotations

from experiment.contract.plan import make_plan
from experiment.ledger import Evidence, states
from experiment.steps.session import Session


def plan(session: Session) -> Evidence:
    """Record what the run is about to be. Needs no host and no money.

    Raises:
        NotFound, ContractInvalid: the project or an input is not there any more.
    """

    def do(_begun: Evidence) -> Evidence:
        made = make_plan(session.contract)
        return {
            "contract_sha256": made.contract_sha256,
            "worst_case": made.worst_case,
            "inputs": made.inputs,
            "steps": [step["name"] for step in made.steps],
            "warnings": made.warnings,
            "bitwise_reproducible": session.contract.bitwise_reproducible,
        }

    inputs = {"contract_sha256": session.run.contract_sha256}
    return session.controller.once("plan", inputs, do, to=states.PLANNED)
