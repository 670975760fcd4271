"""shutdown: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.shutdown import shutdown as act


@task(name="shutdown", cache_policy=NO_CACHE, persist_result=False)
def shutdown(ref: RunRef) -> Evidence:
    """Stop the host by the provider's word. Never retried by Prefect."""
    with attached(ref) as session:
        return act(session)
