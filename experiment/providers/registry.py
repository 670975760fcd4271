"""Providers by name."""

from __future__ import annotations

from experiment.clock import Clock
from experiment.errors import ContractInvalid
from experiment.paths import Home
from experiment.providers.base import Provider
from experiment.providers.local import LocalProvider

NAMES = ("local",)


def get_provider(name: str, home: Home, clock: Clock) -> Provider:
    """The provider of that name.

    Raises:
        ContractInvalid: there is none.
    """
    if name == "local":
        return LocalProvider(home, clock)
    raise ContractInvalid(
        "provider is not known",
        "host.provider",
        expected=f"one of {', '.join(NAMES)}",
        found=repr(name),
        hint="correct the contract",
    )
