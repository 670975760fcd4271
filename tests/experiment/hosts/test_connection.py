"""How a connection is made, and every way in which it can't be."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiment.errors import GuardRefused, HostUnreachable, NotFound
from experiment.hosts.base import Endpoint
from experiment.hosts.connect import close_all, connect
from experiment.hosts.connection import fingerprint, open_connection
from experiment.hosts.ssh import SshHost
from experiment.paths import Home
from experiment.providers.local_folder import InstanceFolder
from experiment.providers.local_sshd import free_port, make_keys

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZ5oXE5Nn2bJZ9Zk8e7m3mTgq0m0g0oXbq2oXgqvB2h"


def never_speak(client: socket.socket) -> None:
    """Accepts, and never says a word."""


def stop_after_banner(client: socket.socket) -> None:
    client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def drip_banner(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for _ in range(1000):
            client.sendall(b"not yet\r\n")
            time.sleep(0.1)


def speak_http(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client.close()


@contextlib.contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    """A TCP server on loopback that behaves so towards everyone who connects."""
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    clients.append(client)
                    behave(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield Endpoint("ssh", "127.0.0.1", server.getsockname()[1], "me", None, OTHER_KEY)
        finally:
            for client in clients:
                client.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@pytest.mark.parametrize("behave", [never_speak, stop_after_banner, drip_banner, speak_http])
def test_a_server_that_does_not_serve_is_unreachable_in_time(
    behave: Callable[[socket.socket], None],
) -> None:
    """Silence at any stage ends within the call's timeout, as exit 75."""
    with listening(behave) as endpoint:
        begun = time.monotonic()
        with pytest.raises(HostUnreachable) as failed:
            SshHost(endpoint).run(["true"], timeout=1.5)
        assert time.monotonic() - begun < 4
        assert failed.value.exit_code == 75
        assert endpoint.address in failed.value.line()


def test_a_closed_port_is_unreachable_at_once() -> None:
    """Refused is exit 75, for every kind of call."""
    host = SshHost(Endpoint("ssh", "127.0.0.1", free_port(), "me", None, OTHER_KEY))
    for call in (
        lambda: host.run(["true"], timeout=5),
        lambda: host.read("/etc/passwd", timeout=5),
        lambda: host.write(b"", "/tmp/never", timeout=5),
        lambda: host.put(Path(__file__), "/tmp/never", timeout=5),
    ):
        begun = time.monotonic()
        with pytest.raises(HostUnreachable):
            call()
        assert time.monotonic() - begun < 2


def test_an_unknown_name_is_unreachable() -> None:
    """A host name that does not resolve is exit 75, too."""
    with pytest.raises(HostUnreachable):
        SshHost(Endpoint("ssh", "no.such.host.invalid", 22, "me", None, OTHER_KEY)).run(
            ["true"], timeout=5
        )


@pytest.mark.sshd
def test_a_changed_host_key_is_refused_with_both_fingerprints(endpoint: Endpoint) -> None:
    """Another key than the pinned one is exit 2, and nobody logs in."""
    assert endpoint.host_key
    changed = dataclasses.replace(endpoint, host_key=OTHER_KEY)
    with pytest.raises(GuardRefused) as failed:
        SshHost(changed).run(["true"], timeout=10)
    assert failed.value.exit_code == 2
    assert fingerprint(OTHER_KEY) in failed.value.line()
    assert fingerprint(endpoint.host_key) in failed.value.line()


@pytest.mark.sshd
def test_a_key_that_nobody_pinned_is_refused(endpoint: Endpoint, home: Home) -> None:
    """There is no first use that trusts by itself; a pinned line in known_hosts is enough."""
    stranger = dataclasses.replace(endpoint, host_key=None)
    with pytest.raises(GuardRefused) as failed:
        connect(stranger, home).run(["true"], timeout=10)
    assert fingerprint(endpoint.host_key or "") in failed.value.line()
    home.known_hosts.mkdir(parents=True)
    (home.known_hosts / f"{endpoint.host}_{endpoint.port}").write_text(
        f"[{endpoint.host}]:{endpoint.port} {endpoint.host_key}\n"
    )
    assert connect(stranger, home).run(["true"], timeout=10).returncode == 0
    close_all()


@pytest.mark.sshd
def test_a_refused_login_is_told_as_such(endpoint: Endpoint, tmp_path: Path) -> None:
    """The wrong private key is no riddle."""
    other = InstanceFolder(tmp_path)
    make_keys(other)
    wrong = dataclasses.replace(endpoint, key_path=other.login_key)
    with pytest.raises(HostUnreachable, match="login refused"):
        SshHost(wrong).run(["true"], timeout=10)


def test_a_missing_private_key_is_named(tmp_path: Path) -> None:
    """Found out before anybody is asked."""
    nowhere = Endpoint("ssh", "127.0.0.1", 1, "me", tmp_path / "gone", OTHER_KEY)
    with pytest.raises(NotFound, match="gone"):
        SshHost(nowhere).run(["true"], timeout=5)


@pytest.mark.sshd
def test_the_factory_sets_what_was_measured(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AES-GCM and TCP_NODELAY are in use, and a person's ~/.ssh/config has no say."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "Host *\n  Port 1\n  User nobody\n  ProxyCommand no\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    connection = open_connection(endpoint, timeout=10)
    transport = connection.transport
    assert transport.local_cipher == transport.remote_cipher == "aes128-gcm@openssh.com"
    assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.client.close()


@pytest.mark.sshd
def test_one_process_has_one_host_for_an_endpoint(endpoint: Endpoint, home: Home) -> None:
    """The pool gives the same connection again, and a fresh one after `close_all`."""
    host = connect(endpoint, home)
    assert connect(endpoint, home) is host
    close_all()
    assert connect(endpoint, home) is not host
    close_all()
