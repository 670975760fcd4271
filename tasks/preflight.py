"""preflight: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.preflight import preflight as act
from tasks.retrying import WHILE_UNREACHABLE


@task(
    name="preflight",
    cache_policy=NO_CACHE,
    persist_result=False,
    timeout_seconds=300,
    **WHILE_UNREACHABLE,
)
def preflight(ref: RunRef) -> Evidence:
    """Check disk, inodes, GPU and VRAM on the host."""
    with attached(ref) as session:
        return act(session)
