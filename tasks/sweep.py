"""sweep: the Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from experiment.rentals.sweep import abandoned_runs, home_sweep


@task(name="sweep", cache_policy=NO_CACHE, persist_result=False)
def sweep(home: str) -> list[dict[str, str | None]]:
    """Look at every live rental once."""
    return [finding.as_json() for finding in home_sweep(home)]


@task(name="abandoned", cache_policy=NO_CACHE, persist_result=False)
def abandoned(home: str) -> list[dict[str, str]]:
    """Runs that are not over and that no controller holds, with their last flow run."""
    return abandoned_runs(home)
