"""environment: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.environment import environment as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="environment", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def environment(ref: RunRef) -> Evidence:
    """Unpack the payload and make or reuse the Python environment."""
    with attached(ref) as session:
        return act(session)
