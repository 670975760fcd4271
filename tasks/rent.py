"""rent: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.rent import rent as act


@task(name="rent", cache_policy=NO_CACHE, persist_result=False)
def rent(ref: RunRef) -> Evidence:
    """Reuse or rent the host. Never retried: an unclear answer is settled by name."""
    with attached(ref) as session:
        return act(session)
