"""Providers by name."""

from __future__ import annotations

import pytest

from experiment.clock import SystemClock
from experiment.errors import ContractInvalid
from experiment.paths import Home
from experiment.providers.registry import NAMES, get_provider


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_provider(home: Home, name: str) -> None:
    """The provider knows its own name."""
    assert get_provider(name, home, SystemClock()).name == name


def test_an_unknown_name_is_refused(home: Home) -> None:
    """The message names the key, the value and the choices."""
    with pytest.raises(ContractInvalid, match=r"host\.provider.*local.*'moon'"):
        get_provider("moon", home, SystemClock())
