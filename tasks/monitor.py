"""monitor: the Prefect task. It reports transitions; polls that see nothing new say nothing."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from experiment.ledger import Evidence
from experiment.steps import RunRef, attached
from experiment.steps.monitor import monitor as act


@task(name="monitor", cache_policy=NO_CACHE, persist_result=False)
def monitor(ref: RunRef) -> Evidence:
    """Watch until the verdict is final. Stopping this task stops no training."""
    logger = get_run_logger()
    said: set[str] = set()

    def report(seen: dict[str, Any]) -> None:
        for line in transitions(seen):
            if line not in said:
                said.add(line)
                logger.info(line)

    with attached(ref) as session:
        return act(session, report)


def transitions(seen: dict[str, Any]) -> list[str]:
    """What a status says that is worth a line, each the same for the same fact."""
    if "unreachable" in seen:
        return [f"host unreachable, the run goes on: {seen['unreachable']}"]
    lines = [f"verdict {seen['verdict']['verdict']}: {seen['verdict']['reason']}"]
    points = seen["metrics"]["points"]
    if points:
        lines.append("first metrics")
    if seen["verdict"].get("flags", {}).get("stalled"):
        lines.append("stalled: the process lives, nothing moves")
    lines.extend(f"output {path}" for path in seen["outputs"]["present"])
    return lines
