"""What is special about the machine without SSH."""

from __future__ import annotations

import os
from pathlib import Path

from experiment.hosts.base import Endpoint
from experiment.hosts.connect import close_all, connect
from experiment.paths import Home
from tests.twins.rented_box import ENVIRON


def test_only_the_given_environment_gets_in(home: Home, tmp_path: Path) -> None:
    """No secret of the controller reaches what runs on the host; cwd is the given folder."""
    os.environ["CHARTER_TEST_SECRET"] = "leak"
    try:
        env = tuple({**ENVIRON, "MARK": "1"}.items())
        host = connect(Endpoint("local", env=env, root=str(tmp_path / "root")), home)
        names = host.run(["env"], timeout=10).stdout.decode()
        where = host.run(["pwd"], timeout=10).stdout.decode().strip()
    finally:
        del os.environ["CHARTER_TEST_SECRET"]
        close_all()
    assert "MARK=1" in names
    assert "leak" not in names
    assert os.path.realpath(where) == os.path.realpath(tmp_path / "root")
    assert host.address == "this machine"


def test_programs_have_a_session_of_their_own(home: Home, tmp_path: Path) -> None:
    """Ctrl-C in the controller's terminal does not reach them."""
    host = connect(Endpoint("local", env=tuple(ENVIRON.items()), root=str(tmp_path)), home)
    told = host.run(["sh", "-c", "ps -o sid= -p $$"], timeout=10).stdout
    close_all()
    assert int(told) != os.getsid(0)
