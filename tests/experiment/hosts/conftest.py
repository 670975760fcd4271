"""Two machines with one interface: this one directly, and this one through a real SSH server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.hosts.base import Endpoint, Host
from experiment.hosts.local import LocalHost
from experiment.hosts.ssh import SshHost
from experiment.paths import Home
from tests.twins.rented_box import ENVIRON, rented_box


@pytest.fixture(scope="package")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A real sshd with an awkward home: spaces, a percent sign, a quote."""
    home = Home(tmp_path_factory.mktemp("home") / "it's 100% mine")
    with rented_box(home) as (_, instance):
        assert instance.endpoint is not None
        yield instance.endpoint


@pytest.fixture
def ssh_host(endpoint: Endpoint) -> Iterator[SshHost]:
    host = SshHost(endpoint)
    yield host
    host.close()


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "ssh":
        yield request.getfixturevalue("ssh_host")
        return
    here = LocalHost(ENVIRON, tmp_path / "root")
    yield here
    here.close()
