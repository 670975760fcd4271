"""The whole life of one experiment: plan, gate, rent, train, collect, verify, shut down, seal.

The steps and their order are `experiment.steps.TABLE`. The flow can be run again from any point:
every step asks the ledger first. Being ended (a cancel, a runner's SIGTERM, a crash) is a detach:
nothing in here stops a host but the step `shutdown`.
"""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from experiment import steps
from experiment.approval.grants import GRANTED
from experiment.errors import CharterError
from experiment.ledger import states
from experiment.paths import Home
from experiment.steps import Goal, RunRef, Step, attached
from experiment.steps.opening import controlling, open_from_flow
from flows.approval import gate
from tasks import TASKS
from tasks.order import order_collect, order_shutdown

_GOOD = (states.SHUTDOWN, states.VERIFIED)


@flow(name="run-experiment", persist_result=False, retries=0)
def run_experiment(
    contract: str = "",
    run_id: str = "",
    goal: Goal = "full",
    overrides: dict[str, str] | None = None,
) -> State[Any]:
    """Take an experiment from its contract to verified results, with the meter stopped.

    Args:
        contract: path of the contract on the runner's machine. Not needed with a run id.
        run_id: a run to go on with; empty opens one.
        goal: full; prepare (all up to the launch). collect and shutdown act on the run given by
            its id, like the commands of those names.
        overrides: dotted contract keys and their values, like `billing.max_total: "5"`.
    """
    mine = str(flow_run.id)
    ref = open_from_flow(Home.find(), contract, run_id, overrides or {}, mine)
    try:
        if goal in ("collect", "shutdown"):
            return _obey(ref, goal)
        with controlling(ref, mine) as held:
            _walk(held, steps.BEFORE_THE_GATE, goal)
        grant = gate(ref)
        if grant.decision != GRANTED:
            return Cancelled(message=f"refused by {grant.who}: nothing was rented")
        with controlling(ref, mine) as held:
            _walk(held, steps.AFTER_THE_GATE, goal)
    except CharterError as error:
        get_run_logger().error("error: %s", error.line())
        _publish(ref)
        return Failed(name=_state(ref) or "NOT_PLANNED", message=error.line())
    _publish(ref)
    state = _state(ref)
    if state in _GOOD or (goal != "full" and state not in (states.FAILED, states.PARTIAL)):
        return Completed(name=state, message=f"run {ref.run_id}")
    return Failed(name=state or "NOT_PLANNED", message=f"run {ref.run_id} ended {state}")


def _obey(ref: RunRef, goal: Goal) -> State[Any]:
    if goal == "shutdown":
        order_shutdown(ref, "the dashboard")
    else:
        order_collect(ref)
    _publish(ref)
    return Completed(name=_state(ref) or goal.upper(), message=f"{goal}: run {ref.run_id}")


def _walk(ref: RunRef, rows: tuple[Step, ...], goal: Goal) -> None:
    for step in rows:
        with attached(ref) as session:
            if not steps.needed(step, session, goal):
                continue
        try:
            TASKS[step.name](ref)
        except CharterError as error:
            with attached(ref) as session:
                steps.record_error(session, step, error)
            raise


def _state(ref: RunRef) -> str | None:
    with attached(ref) as session:
        return session.state()


def _publish(ref: RunRef) -> None:
    """The table of states as an artifact."""
    with attached(ref) as session:
        rows = [
            {
                "seq": entry["seq"],
                "step": entry["step"],
                "state": entry["to"] or "",
                "at (UTC)": entry["at_utc"][:19],
                "digest": entry["sha256"][:16],
            }
            for entry in session.ledger.entries(session.run_id)
            if entry["phase"] != "intent"
        ]
        key = f"states-{session.job}"
    if rows:
        create_table_artifact(rows, key=key, description=f"run {ref.run_id}")
