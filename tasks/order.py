"""order: the Prefect tasks for what a person orders by a flow run's goal."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.paths import Home
from experiment.steps import RunRef
from experiment.steps.orders import collect_run, shutdown_run


@task(name="order-shutdown", cache_policy=NO_CACHE, persist_result=False)
def order_shutdown(ref: RunRef, who: str) -> Evidence:
    """Stop the run's host. Never retried by Prefect."""
    return shutdown_run(Home(Path(ref.home)), ref.run_id, who=who, dry_run=False)


@task(name="order-collect", cache_policy=NO_CACHE, persist_result=False)
def order_collect(ref: RunRef) -> Evidence:
    """Bring the run's files here, from whatever state has any."""
    return collect_run(Home(Path(ref.home)), ref.run_id)
