"""The sweep's rule: each row of its table."""

from __future__ import annotations

import pytest

from experiment.rentals.sweep import decide

# provider, run, trainer, deadline passed, held, keep -> action
ROWS = [
    ("off", "RUNNING", "none", False, 0, False, "close"),
    ("released", "VERIFIED", "none", True, 0, False, "close"),
    ("lost", "RUNNING", "none", False, 0, False, "unknown"),
    ("unknown", "FAILED", "none", True, 9999, False, "unknown"),
    ("running", "RUNNING", "alive", True, 0, False, "stop"),
    ("running", "RUNNING", "unreachable", True, 0, False, "stop"),
    ("running", "RUNNING", "unreachable", False, 9999, False, "leave"),
    ("running", "FAILED", "unreachable", False, 9999, False, "leave"),
    ("running", "RUNNING", "alive", False, 9999, False, "leave"),
    ("running", "FAILED", "alive", False, 9999, False, "leave"),
    ("running", "RUNNING", "none", False, 9999, False, "leave"),
    ("running", "RENTED", "none", False, 9999, False, "leave"),
    ("running", "FAILED", "none", False, 1199, False, "leave"),
    ("running", "FAILED", "none", False, 1200, False, "stop"),
    ("running", "PARTIAL", "none", False, 1200, False, "stop"),
    ("running", "COLLECTED", "none", False, 1200, False, "stop"),
    ("running", "VERIFIED", "none", False, 9999, True, "leave"),
    ("running", "SHUTDOWN", "none", False, 0, False, "stop"),
    ("starting", "PREPARED", "none", False, 0, False, "leave"),
]


@pytest.mark.parametrize(("provider", "run", "trainer", "deadline", "held", "keep", "action"), ROWS)
def test_the_rule(
    provider: str, run: str, trainer: str, deadline: bool, held: int, keep: bool, action: str
) -> None:
    """One row of the table."""
    found, reason = decide(
        provider=provider,
        run_state=run,
        trainer=trainer,
        deadline_passed=deadline,
        held_seconds=held,
        hold_seconds=1200,
        keep=keep,
    )
    assert found == action
    assert reason
