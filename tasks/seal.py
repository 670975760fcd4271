"""seal: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.seal import seal as act


@task(name="seal", cache_policy=NO_CACHE, persist_result=False, timeout_seconds=600)
def seal(ref: RunRef) -> Evidence:
    """Sign count and head of the chain."""
    with attached(ref) as session:
        return act(session)
