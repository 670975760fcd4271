"""verify: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.verify import verify as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="verify", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def verify(ref: RunRef) -> Evidence:
    """Recompute everything here and run the verifier."""
    with attached(ref) as session:
        return act(session)
