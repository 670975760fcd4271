"""collect: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.collect import collect as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="collect", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def collect(ref: RunRef) -> Evidence:
    """Stream the results here, hashed at both ends."""
    with attached(ref) as session:
        return act(session)
