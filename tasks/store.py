"""store: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.store import store as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="store", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def store(ref: RunRef) -> Evidence:
    """Store the results by digest and read them back."""
    with attached(ref) as session:
        return act(session)
