"""snapshot: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.snapshot import snapshot as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="snapshot", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def snapshot(ref: RunRef) -> Evidence:
    """Re-hash every input on the host."""
    with attached(ref) as session:
        return act(session)
