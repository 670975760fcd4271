"""The sweep, every five minutes and after a crash: stops hosts that nobody needs, in a runner of
its own, so that a busy or broken experiments runner does not keep it from running."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect import flow, get_client, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Failed, State

from experiment.paths import Home
from tasks.sweep import abandoned, sweep


@flow(name="reconcile-rentals", persist_result=False, retries=0)
def reconcile_rentals() -> State[Any]:
    """Look at every live rental; close what is off, stop what is over its bounds or unused.

    Runs whose flow crashed are walked on by a new flow run: a controller is replaced, never a
    trainer.
    """
    findings = sweep(str(Home.find().root))
    logger = get_run_logger()
    for finding in findings:
        logger.info("%s: %s, %s", finding["rental"], finding["action"], finding["reason"])
    if findings:
        create_table_artifact(findings, key="rentals", description="What the sweep saw and did")
    for run in abandoned(str(Home.find().root)):
        _walk_on(run)
    unstopped = [finding for finding in findings if finding["error"]]
    if unstopped:
        for finding in unstopped:
            logger.critical("%s: %s", finding["rental"], finding["error"])
        return Failed(name="NOT_STOPPED", message="; ".join(str(f["error"]) for f in unstopped))
    return Completed(message=f"{len(findings)} live rentals")


def _walk_on(run: dict[str, str]) -> None:
    """A new flow run for a run whose last one crashed. Cancelled ones are left: a person did that,
    or a runner that was ended."""
    with get_client(sync_client=True) as client:
        try:
            last = client.read_flow_run(UUID(run["flow_run"]))
        except ObjectNotFound:
            return
    if last.state is None or last.state.type != StateType.CRASHED:
        return
    get_run_logger().warning("run %s: its flow crashed, another goes on", run["run_id"])
    run_deployment(
        "run-experiment/run_experiment",
        parameters={"run_id": run["run_id"]},
        timeout=0,
        as_subflow=False,
        idempotency_key=f"after-{run['flow_run']}",
        tags=[f"run:{run['run_id']}"],
    )
