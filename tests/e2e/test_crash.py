"""SIGKILL before, inside and after every step: the re-run finishes, and nothing happened twice."""

from __future__ import annotations

import signal

import pytest

from experiment.steps import TABLE
from tests.e2e.conftest import World

POINTS = ("before", "intent", "effect", "after")
EVERY = [f"{step.name}.{point}" for step in TABLE for point in POINTS] + [
    "rent.created",
    "shutdown.stopping",
]
# In `make test`: between effect and record everywhere (the hardest place), and around the steps
# that cost money or start something.
QUICK = {name for name in EVERY if name.endswith(".effect")} | {
    "rent.before",
    "rent.intent",
    "rent.created",
    "rent.after",
    "launch.intent",
    "launch.after",
    "shutdown.intent",
    "shutdown.stopping",
    "shutdown.after",
}

pytestmark = pytest.mark.sshd


@pytest.mark.parametrize(
    "point",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EVERY],
)
def test_killed_at(world: World, point: str) -> None:
    """One kill -9 at this point, then the same command again."""
    code, _, err = world.drive(CHARTER_FAULT=f"kill:{point}")
    assert code == -signal.SIGKILL, err
    code, out, err = world.drive()
    assert (code, out) == (0, "SHUTDOWN"), err
    world.must_be_whole()


def test_not_killed(world: World) -> None:
    """A second call after the end does nothing more."""
    assert world.drive()[:2] == (0, "SHUTDOWN")
    before = world.entries()
    assert world.drive()[:2] == (0, "SHUTDOWN")
    assert world.entries() == before
    world.must_be_whole()
