"""The automation that finds zombies."""

from __future__ import annotations

import pytest

from deployments.automations import ZOMBIES

pytestmark = pytest.mark.prefect


def test_the_reapers_runner_made_it_once(served, api):
    """After `up` (and more than one start of the runners) the server has exactly one."""
    found = api.call("POST", "/automations/filter", {})
    mine = [each for each in found if each["name"] == ZOMBIES]
    assert len(mine) == 1
    assert mine[0]["enabled"]
    assert mine[0]["trigger"]["within"] == 90
    assert mine[0]["actions"][0]["state"] == "CRASHED"
