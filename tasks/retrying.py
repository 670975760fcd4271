"""When a task is tried again: only where its step is safe to repeat, only while unreachable."""

from __future__ import annotations

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from experiment.errors import HostUnreachable


def unreachable(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Exit 75: the control plane did not answer, nothing follows about the host's work."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, HostUnreachable)


WHILE_UNREACHABLE: dict[str, Any] = {
    "retries": 5,
    "retry_delay_seconds": [2, 5, 15, 30, 60],
    "retry_jitter_factor": 0.3,
    "retry_condition_fn": unreachable,
}
