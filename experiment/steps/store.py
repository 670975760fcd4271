"""store: the results by digest, read back after writing. After shutdown: the meter is off."""

from __future__ import annotations

from experiment.ledger import Evidence
from experiment.results.store import open_store, store_results
from experiment.steps.session import Session


def store(session: Session) -> Evidence:
    """Put every file of the results folder into the contract's store.

    Raises:
        CharterError: the store failed; the results are still here and the step can be repeated.
    """
    verified = session.recorded("verify")

    def do(_begun: Evidence) -> Evidence:
        return put(session)

    inputs = {"archive": verified["archive_sha256"], "store": session.contract.store}
    return session.controller.once("store", inputs, do)


def put(session: Session) -> Evidence:
    """Store what is there now; files that the store already has are not sent again."""
    target = open_store(session.contract.store, session.contract.base, session.home)
    return store_results(session.results, target, session.job, session.run_id)
