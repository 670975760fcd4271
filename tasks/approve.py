"""approve: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.approve import approve as act


@task(name="approve", cache_policy=NO_CACHE, persist_result=False, timeout_seconds=60)
def approve(ref: RunRef) -> Evidence:
    """Take up the answer given at the gate."""
    with attached(ref) as session:
        return act(session)
