"""sweep: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.rentals.sweep import home_sweep


@task(name="sweep", cache_policy=NO_CACHE, persist_result=False)
def sweep(home: str) -> list[dict[str, str | None]]:
    """Look at every live rental once."""
    return [finding.as_json() for finding in home_sweep(home)]
