"""Habits as written in the environment, and the locks of an instance's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiment.errors import UsageError
from experiment.providers.local_folder import InstanceFolder, parse_habits

GOOD = [
    ("", {}),
    ("changed_port", {"changed_port": True}),
    ("slow_start=3, late_stop=0.5 no_sshd=1", {"slow_start": 3, "late_stop": 0.5, "no_sshd": True}),
    ("lost_after=0 rate=9", {"lost_after": 0, "rate": 9}),
]
BAD = ["slow", "slow_start", "slow_start=soon", "changed_port=maybe"]


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_habits_are_read(text: str, expected: dict[str, float | bool]) -> None:
    """Names with numbers, switches without."""
    assert parse_habits(text) == expected


@pytest.mark.parametrize("text", BAD)
def test_an_unknown_habit_is_refused(text: str) -> None:
    """A test that asks for a habit must get it, not silence."""
    with pytest.raises(UsageError, match="habit"):
        parse_habits(text)


def test_the_meters_lock_tells_its_life(tmp_path: Path) -> None:
    """Held means alive, to the moment; a second meter is refused."""
    folder = InstanceFolder(tmp_path)
    assert not folder.meter_lives()
    held = folder.hold_meter_lock()
    assert held is not None
    assert folder.meter_lives()
    os.close(held)
    assert not folder.meter_lives()


def test_a_fresh_folder_is_off(tmp_path: Path) -> None:
    """No power was ever on: no segment, nothing to bill."""
    assert InstanceFolder(tmp_path).meter()["state"] == "off"
    assert InstanceFolder(tmp_path).meter()["segments"] == []
