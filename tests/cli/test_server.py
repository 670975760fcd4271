"""`up`, `down` and `doctor` as a person types them."""

from __future__ import annotations

import json

import pytest

from cli.main import main
from tests.deployments.served import MANIFEST


def test_doctor_prints_checks_with_their_fix(home, capsys):
    """The object of the interface page, and creates no ledger nor keys."""
    code = main(["doctor", "--json", "--home", str(home.root)])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {"name", "status", "detail", "fix"} == set(checks[0])
    assert code == (1 if any(check["status"] == "FAIL" for check in checks) else 0)
    assert {check["name"] for check in checks} >= {"python", "disk", "ledger", "sshd", "server"}
    assert not home.root.exists()


def test_down_with_an_open_rental_asks(home, capsys, monkeypatch):
    """Where nobody can answer it refuses with exit 2 and ends nothing; --dry-run only tells."""
    monkeypatch.setattr("cli.server._open_rentals", lambda _home: ["charter-a-1"])
    assert main(["down", "--home", str(home.root), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "guard_refused"
    assert "charter-a-1" in error["message"]
    assert main(["down", "--dry-run", "--home", str(home.root)]) == 0
    assert "charter-a-1" in capsys.readouterr().out
    assert main(["down", "--yes", "--home", str(home.root)]) == 0


@pytest.mark.prefect
def test_up_on_a_running_home_prints_where_it_is(served, capsys, monkeypatch):
    """Dashboard, password file and how to stop; the same facts as an object."""
    monkeypatch.setattr("deployments.server.MANIFEST", MANIFEST)
    assert main(["up", "--home", str(served.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["started"] == []
    assert found["url"].endswith("/api")
    assert set(found["runners"]) == {"experiments", "reapers"}
    assert main(["up", "--home", str(served.root)]) == 0
    text = capsys.readouterr().out
    assert found["dashboard"] in text
    assert "charter down" in text
