"""plan: the resolved contract, and everything from outside pinned, so that an approval binds it."""

from __future__ import annotations

from experiment.contract.plan import make_plan
from experiment.errors import GuardRefused
from experiment.ledger import Evidence, states
from experiment.providers.registry import get_provider
from experiment.steps.session import Session


def plan(session: Session) -> Evidence:
    """Record what the run is about to be. Needs no host and no money.

    Raises:
        NotFound, ContractInvalid: the project or an input is not there any more.
    """

    def do(_begun: Evidence) -> Evidence:
        _must_be_supported(session)
        made = make_plan(session.contract)
        return {
            "contract_sha256": made.contract_sha256,
            "worst_case": made.worst_case,
            "inputs": made.inputs,
            "wind_down_seconds": made.wind_down_seconds,
            "steps": [step["name"] for step in made.steps],
            "warnings": made.warnings,
            "bitwise_reproducible": session.contract.bitwise_reproducible,
        }

    inputs = {"contract_sha256": session.run.contract_sha256}
    return session.controller.once("plan", inputs, do, to=states.PLANNED)


def _must_be_supported(session: Session) -> None:
    """Refused before anybody is asked: what this version does not do."""
    get_provider(session.contract.host.provider, session.home, session.clock)
    if session.contract.billing.approval == "signed":
        raise GuardRefused(
            "approval refused",
            "billing.approval",
            expected="ask or preauthorised",
            found="signed",
            hint="signed approvals are not in this version",
        )
    hubs = [item for item in session.contract.inputs if item.source != "folder"]
    if hubs:
        raise GuardRefused(
            "input refused",
            ", ".join(item.name for item in hubs),
            expected="source: folder",
            found=", ".join(item.source for item in hubs),
            hint="download it into a folder here first; hubs are not fetched by this version",
        )
