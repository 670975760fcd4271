"""bundle: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.bundle import bundle as act


@task(name="bundle", cache_policy=NO_CACHE, persist_result=False, timeout_seconds=1800)
def bundle(ref: RunRef) -> Evidence:
    """Archive the project and scan it for secrets."""
    with attached(ref) as session:
        return act(session)
