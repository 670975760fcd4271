"""launch: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.launch import launch as act


@task(name="launch", cache_policy=NO_CACHE, persist_result=False)
def launch(ref: RunRef) -> Evidence:
    """Start the trainer, detached. Never retried: the agent answers one request once."""
    with attached(ref) as session:
        return act(session)
