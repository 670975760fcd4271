"""upload: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.upload import upload as act
from tasks.retrying import WHILE_UNREACHABLE


@task(name="upload", cache_policy=NO_CACHE, persist_result=False, **WHILE_UNREACHABLE)
def upload(ref: RunRef) -> Evidence:
    """Send payload and inputs; digests are compared on the host."""
    with attached(ref) as session:
        return act(session)
