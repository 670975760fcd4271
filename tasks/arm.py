"""arm: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.arm import arm as act


@task(name="arm", cache_policy=NO_CACHE, persist_result=False)
def arm(ref: RunRef) -> Evidence:
    """Place the agent and arm the watchdog."""
    with attached(ref) as session:
        return act(session)
