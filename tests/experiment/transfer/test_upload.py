"""Files reach a host exactly, once, and read back; a cut is repeated, within bounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiment.errors import EvidenceMismatch, HostUnreachable, NotFound
from experiment.hosts.agent_door import AgentDoor, RequestRef, find_python
from experiment.hosts.base import Host, Progress
from experiment.hosts.connect import close_all, connect
from experiment.hosts.local import LocalHost
from experiment.paths import Home
from experiment.transfer.upload import TRIES, Item, upload
from remote.agent.files import sha256_file
from tests.twins.rented_box import ENVIRON, rented_box

REF = RequestRef("demo", "20260101-000000", 1, 1)


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def host(request: pytest.FixtureRequest, home: Home) -> Iterator[Host]:
    if request.param == "local":
        here = LocalHost(ENVIRON, home.root)
        yield here
        here.close()
        return
    with rented_box(home) as (_, instance):
        assert instance.endpoint is not None
        yield connect(instance.endpoint, home)
        close_all()


@pytest.fixture
def items(tmp_path: Path) -> list[Item]:
    """A small, an empty and a larger file with an awkward name."""
    made = []
    for name, size in (("small", 10), ("empty", 0), ("it's large", 3_000_000)):
        local = tmp_path / "here" / name
        local.parent.mkdir(exist_ok=True)
        local.write_bytes(os.urandom(size))
        remote = str(tmp_path / "there" / "jobs" / name)
        made.append(Item(local, remote, sha256_file(local), size))
    return made


def placed(host: Host, tmp_path: Path) -> AgentDoor:
    door = AgentDoor(host, str(tmp_path / "there"), find_python(host))
    door.place()
    return door


class BadLink(LocalHost):
    """This machine over a link that fails the first transfers in a chosen way."""

    def __init__(self, failures: int, damage: bool) -> None:
        super().__init__(ENVIRON, "/")
        self.failures = failures
        self.damage = damage
        self.puts = 0

    def put(
        self, local: Path, remote: str, *, timeout: float, progress: Progress | None = None
    ) -> None:
        self.puts += 1
        if self.puts > self.failures:
            super().put(local, remote, timeout=timeout, progress=progress)
        elif self.damage:
            super().write(local.read_bytes()[:-1] + b"?", remote)
        else:
            raise HostUnreachable("transfer was cut", remote)


BadLinks = Callable[[int, bool], BadLink]


@pytest.fixture
def bad_link() -> Iterator[BadLinks]:
    """Makes bad links, and closes them."""
    made: list[BadLink] = []

    def make(failures: int, damage: bool) -> BadLink:
        made.append(BadLink(failures, damage))
        return made[-1]

    yield make
    for link in made:
        link.close()


def test_what_is_missing_is_sent_and_read_back(
    host: Host, tmp_path: Path, items: list[Item]
) -> None:
    """All arrive; again, nothing is sent; after damage on the host, just that file."""
    door = placed(host, tmp_path)
    seen: dict[str, int] = {}
    first = upload(door, items, REF, lambda name, sent, _: seen.update({name: sent}))
    assert [entry["sent"] for entry in first["files"]] == [True, True, True]
    assert first["bytes_sent"] == 3_000_010
    assert seen["it's large"] == 3_000_000
    for item in items:
        assert Path(item.remote).read_bytes() == item.local.read_bytes()

    again = upload(door, items, REF)
    assert (again["bytes_sent"], [entry["sent"] for entry in again["files"]]) == (0, [False] * 3)

    Path(items[0].remote).write_bytes(b"0123456789")
    repaired = upload(door, items, REF)
    assert [entry["sent"] for entry in repaired["files"]] == [True, False, False]
    assert [entry["sha256"] for entry in repaired["files"]] == [item.sha256 for item in items]


@pytest.mark.parametrize("damage", [False, True])
def test_a_bad_link_is_tried_again(
    tmp_path: Path, items: list[Item], bad_link: BadLinks, damage: bool
) -> None:
    """A cut or damaged transfer is repeated whole."""
    link = bad_link(TRIES - 1, damage)
    upload(placed(link, tmp_path), items[:1], REF)
    assert link.puts == TRIES
    assert sha256_file(items[0].remote) == items[0].sha256


def test_a_link_that_stays_cut_is_given_up(
    tmp_path: Path, items: list[Item], bad_link: BadLinks
) -> None:
    """Bounded: then it is exit 75, and the caller's turn."""
    link = bad_link(1000, False)
    with pytest.raises(HostUnreachable):
        upload(placed(link, tmp_path), items[:1], REF)
    assert link.puts == TRIES


def test_a_file_that_never_matches_is_named(
    tmp_path: Path, items: list[Item], bad_link: BadLinks
) -> None:
    """Exit 2 with the path, what was expected and what is there."""
    link = bad_link(1000, True)
    with pytest.raises(EvidenceMismatch) as failed:
        upload(placed(link, tmp_path), items[:1], REF)
    assert items[0].remote in failed.value.line()
    assert items[0].sha256 in failed.value.line()
    assert link.puts == TRIES


def test_a_local_file_that_changed_is_not_passed_off(
    host: Host, tmp_path: Path, items: list[Item]
) -> None:
    """The approved digest counts, not what lies here now; a file that is gone is named."""
    items[0].local.write_bytes(b"another 10")
    with pytest.raises(EvidenceMismatch):
        upload(placed(host, tmp_path), items[:1], REF)
    items[0].local.unlink()
    with pytest.raises(NotFound):
        upload(placed(host, tmp_path), items[:1], REF)
