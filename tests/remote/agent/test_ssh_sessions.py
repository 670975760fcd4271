"""Whether a person is logged in: a real terminal, with what OpenSSH puts into its environment."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.agent.layout import Layout
from remote.agent.process import DATA_ROOT_TAG, INSTANCE_TAG, environment
from remote.agent.ssh_sessions import LOGIN, default_scope, interactive
from tests.remote.agent.agent_host import wait_for


@contextlib.contextmanager
def terminal(**held: str) -> Iterator[int]:
    """A shell on a pseudo-terminal with this environment; its pid."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve("/bin/sleep", ["sleep", "60"], held)
    try:
        wait_for(lambda: environment(pid) == held)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_tagged_login_counts(layout: Layout) -> None:
    """A login through the data root's own server counts in both scopes, while it lasts."""
    assert not interactive(layout, "tagged")
    with terminal(SSH_TTY="/dev/pts/9", **{DATA_ROOT_TAG: str(layout.data_root)}):
        assert interactive(layout, "tagged")
        assert interactive(layout, "any")
    assert not interactive(layout, "tagged")


def test_login_through_the_hosts_own_server(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hosts share a machine, a login counts for the instance whose token it carries."""
    assert default_scope() == "any"
    monkeypatch.setenv(INSTANCE_TAG, "one")
    assert default_scope() == "tagged"
    with terminal(SSH_TTY="/dev/pts/9", **{INSTANCE_TAG: "another"}):
        assert not interactive(layout, default_scope())
    with terminal(SSH_TTY="/dev/pts/9", **{INSTANCE_TAG: "one"}):
        assert interactive(layout, default_scope())


def test_foreign_login_counts_only_on_a_host_of_its_own(layout: Layout) -> None:
    """Somebody's login on a machine that the host shares keeps no host up."""
    with terminal(SSH_TTY="/dev/pts/9"):
        assert interactive(layout, "any")
        assert not interactive(layout, "tagged")


def test_terminal_without_ssh_does_not_count(layout: Layout) -> None:
    """A local terminal is no login."""
    with terminal(**{DATA_ROOT_TAG: str(layout.data_root)}):
        assert not interactive(layout, "tagged")


@pytest.mark.parametrize(
    ("title", "counts"),
    [
        ("sshd: root@pts/0", True),
        ("sshd-session: root@pts/12", True),
        ("sshd: root@notty", False),
        ("sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", False),
        ("vim sshd: root@pts/0", False),
    ],
)
def test_names_of_sshd(title: str, counts: bool) -> None:
    """OpenSSH's own names tell logins with a terminal from commands."""
    assert bool(LOGIN.match(title)) is counts
