"""preflight_full: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.preflight import preflight_full as act
from tasks.retrying import WHILE_UNREACHABLE


@task(
    name="preflight_full",
    cache_policy=NO_CACHE,
    persist_result=False,
    timeout_seconds=1200,
    **WHILE_UNREACHABLE,
)
def preflight_full(ref: RunRef) -> Evidence:
    """Check what needs the job's environment."""
    with attached(ref) as session:
        return act(session)
