"""Prefect tasks: retries, timeouts, names and progress around one library function each.

`TASKS` maps a step's name to its task; the table of steps, and so the order, is the library's.
"""

from __future__ import annotations

from typing import Any

from prefect import Task

from tasks.approve import approve
from tasks.arm import arm
from tasks.bundle import bundle
from tasks.collect import collect
from tasks.environment import environment
from tasks.launch import launch
from tasks.monitor import monitor
from tasks.plan import plan
from tasks.preflight import preflight
from tasks.preflight_full import preflight_full
from tasks.rent import rent
from tasks.seal import seal
from tasks.shutdown import shutdown
from tasks.snapshot import snapshot
from tasks.store import store
from tasks.upload import upload
from tasks.verify import verify

TASKS: dict[str, Task[Any, Any]] = {
    step.name: step
    for step in (
        plan,
        bundle,
        approve,
        rent,
        arm,
        preflight,
        upload,
        environment,
        snapshot,
        preflight_full,
        launch,
        monitor,
        collect,
        verify,
        shutdown,
        store,
        seal,
    )
}
