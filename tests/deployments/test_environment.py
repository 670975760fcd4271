"""A process of ours speaks to this home's server, whatever the person's own Prefect is set to."""

from __future__ import annotations

import pytest

from deployments import environment
from experiment.errors import HostUnreachable


def test_foreign_settings_are_left_behind(home, monkeypatch):
    """A cloud key, a profile and another server in the shell do not reach our processes."""
    monkeypatch.setenv("PREFECT_API_KEY", "pnu_somebody")
    monkeypatch.setenv("PREFECT_PROFILE", "work")
    monkeypatch.setenv("PREFECT_API_URL", "https://elsewhere.example/api")
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    made = environment.process_environment(home, 4242)
    assert "PREFECT_API_KEY" not in made
    assert "PREFECT_PROFILE" not in made
    assert made["PREFECT_API_URL"] == "http://127.0.0.1:4242/api"
    assert made["PREFECT_LOGGING_LEVEL"] == "DEBUG"


def test_telemetry_is_off_and_polling_quick(home):
    """Nothing is reported to anybody, and a run starts within seconds."""
    made = environment.environment_for(home, 1)
    assert made["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert made["DO_NOT_TRACK"] == "1"
    assert made["PREFECT_RUNNER_POLL_FREQUENCY"] == made["PREFECT_WORKER_QUERY_SECONDS"] == "2"
    assert made["PREFECT_HOME"].startswith(str(home.root))


def test_loopback_passes_the_proxy(home, monkeypatch):
    """A company's proxy is not asked for this machine, and its own exceptions stay."""
    monkeypatch.setenv("NO_PROXY", "internal.example")
    made = environment.environment_for(home, 1)
    assert made["NO_PROXY"] == made["no_proxy"] == "internal.example,127.0.0.1,localhost"


def test_no_server_is_said_with_the_next_move(home):
    """Before `charter up` there is no environment to give."""
    with pytest.raises(HostUnreachable, match="charter up"):
        environment.client_environment(home)


def test_the_password_is_made_once(home):
    """Two callers get the same password; the folder is private."""
    assert environment.api_password(home) == environment.api_password(home)
    assert environment.password_file(home).stat().st_mode & 0o777 == 0o600
    assert home.server.stat().st_mode & 0o777 == 0o700
