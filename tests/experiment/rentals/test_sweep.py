"""The sweep's rule: each row of its table."""

from __future__ import annotations

import pytest

from experiment.rentals.sweep import Seen, decide

OLD = 99_999.0
FAILED = Seen("running", run_state="FAILED")

ROWS = [
    ("off closes", Seen("off"), "close"),
    ("released closes, also past the deadline", Seen("released", deadline_passed=True), "close"),
    ("lost is unknown", Seen("lost"), "unknown"),
    ("unknown is not stopped blindly", Seen("unknown", deadline_passed=True), "unknown"),
    (
        "the cap ends a working trainer",
        Seen("running", trainer="alive", deadline_passed=True),
        "stop",
    ),
    (
        "the cap ends an unreachable host",
        Seen("running", trainer="unreachable", deadline_passed=True),
        "stop",
    ),
    (
        "the cap ends a controlled one",
        Seen("running", controlled=True, deadline_passed=True),
        "stop",
    ),
    ("a begun stop goes on", Seen("running", rental="stopping", run_state="VERIFIED"), "stop"),
    ("an unconfirmed stop goes on", Seen("running", rental="stopped_unconfirmed"), "stop"),
    (
        "a controller is not disturbed",
        Seen("running", run_state="COLLECTED", controlled=True, held_seconds=OLD),
        "leave",
    ),
    ("never armed", Seen("running", run_state="RENTED", armed=False, open_seconds=601), "stop"),
    ("not armed yet", Seen("running", run_state="RENTED", armed=False, open_seconds=599), "leave"),
    ("unreachable is not dead", Seen("running", trainer="unreachable", held_seconds=OLD), "leave"),
    (
        "unreachable after a failure",
        Seen("running", run_state="FAILED", trainer="unreachable", held_seconds=OLD),
        "leave",
    ),
    ("a trainer works", Seen("running", trainer="alive", held_seconds=OLD), "leave"),
    (
        "a trainer works on after a wrong FAILED",
        Seen("running", run_state="FAILED", trainer="alive", held_seconds=OLD),
        "leave",
    ),
    ("ended, not yet looked at", Seen("running", held_seconds=OLD), "leave"),
    ("held for a fix", Seen("running", run_state="FAILED", held_seconds=1199), "leave"),
    ("held long enough", Seen("running", run_state="FAILED", held_seconds=1200), "stop"),
    ("partial likewise", Seen("running", run_state="PARTIAL", held_seconds=1200), "stop"),
    ("collected likewise", Seen("running", run_state="COLLECTED", held_seconds=1200), "stop"),
    (
        "verified and kept",
        Seen("running", run_state="VERIFIED", keep=True, held_seconds=OLD),
        "leave",
    ),
    ("verified and abandoned", Seen("running", run_state="VERIFIED"), "stop"),
    ("over", Seen("running", run_state="SHUTDOWN"), "stop"),
    ("still starting", Seen("starting", run_state="PREPARED", armed=False), "leave"),
]


@pytest.mark.parametrize(
    ("seen", "action"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_rule(seen: Seen, action: str) -> None:
    """One row of the table, with a reason in words."""
    found, reason = decide(seen)
    assert found == action
    assert reason
