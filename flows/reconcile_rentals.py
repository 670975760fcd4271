"""The sweep, every five minutes and after a crash: stops hosts that nobody needs, in a runner of
its own, so that a busy or broken experiments runner does not keep it from running."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.states import Completed, Failed, State

from experiment.paths import Home
from tasks.sweep import sweep


@flow(name="reconcile-rentals", persist_result=False, retries=0)
def reconcile_rentals() -> State[Any]:
    """Look at every live rental; close what is off, stop what is over its bounds or unused."""
    findings = sweep(str(Home.find().root))
    logger = get_run_logger()
    for finding in findings:
        logger.info("%s: %s, %s", finding["rental"], finding["action"], finding["reason"])
    if findings:
        create_table_artifact(findings, key="rentals", description="What the sweep saw and did")
    unstopped = [finding for finding in findings if finding["error"]]
    if unstopped:
        for finding in unstopped:
            logger.critical("%s: %s", finding["rental"], finding["error"])
        return Failed(name="NOT_STOPPED", message="; ".join(str(f["error"]) for f in unstopped))
    return Completed(message=f"{len(findings)} live rentals")
