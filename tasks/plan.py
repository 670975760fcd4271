"""plan: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.plan import plan as act


@task(name="plan", cache_policy=NO_CACHE, persist_result=False, timeout_seconds=300)
def plan(ref: RunRef) -> Evidence:
    """Resolve the contract and pin what comes from outside."""
    with attached(ref) as session:
        return act(session)
