"""A local instance for a test: rented, waited for, and gone afterwards, whatever the test did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

from experiment.clock import SystemClock
from experiment.paths import Home
from experiment.providers.base import CreateRequest, Instance
from experiment.providers.local import LocalProvider
from experiment.providers.local_folder import InstanceFolder

# PATH only: what a test needs of the outside, it names.
ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def provider_of(home: Home, **environ: str) -> LocalProvider:
    """The provider as a controller with that environment has it."""
    return LocalProvider(home, SystemClock(), {**ENVIRON, **environ})


def request_for(name: str, rate: str = "2") -> CreateRequest:
    return CreateRequest(name, "any", 1, "CNY", Decimal(rate))


def folder_of(home: Home, name: str) -> InstanceFolder:
    return InstanceFolder(home.hosts / name)


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for another process; fails by name instead of hanging."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not true after {seconds:g} s: {what}"
        time.sleep(0.01)


def wait_for(provider: LocalProvider, name: str, state: str) -> Instance:
    """The instance once it is in that state."""
    until(lambda: provider.status(name).state == state, f"{name} is {state}")
    return provider.status(name)


def return_box(provider: LocalProvider, name: str) -> None:
    """Power off and release, from any state."""
    provider.power_off(name)
    until(lambda: provider.status(name).state in ("off", "lost", "released"), f"{name} is off")
    provider.release(name)


@contextlib.contextmanager
def rented_box(
    home: Home, name: str = "box-1", **environ: str
) -> Iterator[tuple[LocalProvider, Instance]]:
    """A running instance and its provider."""
    provider = provider_of(home, **environ)
    provider.create(request_for(name))
    try:
        yield provider, wait_for(provider, name, "running")
    finally:
        return_box(provider, name)


def processes_naming(path: Path) -> list[str]:
    """Command lines of living processes whose command line or environment names the path."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), *process.environ().values()]
        except (psutil.Error, OSError):
            continue
        if any(str(path) in word for word in words):
            found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found
