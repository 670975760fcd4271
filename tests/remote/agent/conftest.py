"""A data root per test, and a way to ask the agent that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.layout import Layout
from remote.agent.perform import perform

JOB, RUN_ID = "tiny", "20260101-000000"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The layout of job `tiny`, run `20260101-000000`, attempt 1, in a folder of its own."""
    return Layout(tmp_path / "data root", JOB, RUN_ID, 1)


@pytest.fixture
def envelope(layout: Layout) -> Callable[..., dict[str, Any]]:
    """Makes requests: `envelope(step, suffix="", epoch=1, **fields)`."""

    def make(step: str, suffix: str = "", epoch: int = 1, **fields: Any) -> dict[str, Any]:
        tail = f"/{suffix}" if suffix else ""
        return {
            "protocol": 1,
            "request_id": f"{RUN_ID}/1/{step}{tail}",
            "epoch": epoch,
            "job": JOB,
            "run_id": RUN_ID,
            "attempt": 1,
            "data_root": str(layout.data_root),
            **fields,
        }

    return make


@pytest.fixture
def ask(envelope: Callable[..., dict[str, Any]]) -> Ask:
    """Does one step in this process and gives the whole answer."""

    def make(step: str, suffix: str = "", epoch: int = 1, **fields: Any) -> dict[str, Any]:
        return perform(step, envelope(step, suffix, epoch, **fields))

    return make
