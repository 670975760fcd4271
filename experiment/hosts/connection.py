"""The one way an SSH connection is made.

An own socket (TCP_NODELAY: 45 ms become 2.5 ms a call; TCP_USER_TIMEOUT: a cut link is noticed in
about 11 s; bbr where the kernel has it), AES-GCM first (paramiko lists it last), a wide window,
and a pinned host key. Fabric's default of adding unknown keys is never used.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import paramiko
from fabric import Config, Connection
from paramiko.common import MSG_CHANNEL_REQUEST

from experiment.errors import GuardRefused, HostUnreachable, NotFound
from experiment.hosts.base import Endpoint

CONNECT_SECONDS = 10.0
BANNER_SECONDS = 10.0
LOGIN_SECONDS = 15.0
KEEPALIVE_SECONDS = 5
USER_TIMEOUT_MS = 8000
WINDOW_BYTES = 1 << 26
# AES-GCM may carry far more under one key than paramiko's default of 512 MB before it re-keys.
REKEY_BYTES = 1 << 34
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
MACOS_USER_TIMEOUT = 0x80  # TCP_RXT_CONNDROPTIME, in seconds; not in the socket module

# paramiko prints tracebacks of refused logins on its own; what matters is raised here.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def open_connection(endpoint: Endpoint, *, timeout: float) -> Connection:
    """Log in, within `timeout` seconds altogether.

    Raises:
        GuardRefused: the host shows another key than the pinned one, or none is pinned.
        HostUnreachable: no answer, no SSH server, or the login was refused.
        NotFound: the private key is not there.
    """
    deadline = time.monotonic() + timeout
    if endpoint.key_path and not endpoint.key_path.exists():
        raise NotFound(
            "private key is missing",
            str(endpoint.key_path),
            hint=f"it opens {endpoint.address}; put it back, or attach the host again",
            exit_code=1,
        )
    with unreachable(endpoint):
        sock = open_socket(endpoint, min(CONNECT_SECONDS, timeout))
    # An explicit configuration: nobody's ~/.ssh/config or fabric.yaml has a say here.
    connection = Connection(
        endpoint.host,
        user=endpoint.user,
        port=endpoint.port,
        config=Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        connect_kwargs=_login(endpoint, sock, max(0.5, deadline - time.monotonic())),
    )
    connection.client.set_missing_host_key_policy(PinnedKey(endpoint))
    try:
        with unreachable(endpoint):
            connection.open()
    except BaseException:
        connection.client.close()
        sock.close()
        raise
    connection.transport.set_keepalive(KEEPALIVE_SECONDS)
    return connection


def open_socket(endpoint: Endpoint, timeout: float) -> socket.socket:
    """A connected TCP socket, set for short calls and for noticing a dead link.

    Raises:
        OSError: no connection within `timeout` seconds.
    """
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The rest makes a connection better where the system knows it.
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, MACOS_USER_TIMEOUT, USER_TIMEOUT_MS // 1000)
    return sock


class Transport(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """paramiko's transport, with our ciphers and window, that also hears death by signal."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW_BYTES, **options)
        security = self.get_security_options()
        security.ciphers = [name for name in CIPHERS if name in security.ciphers]
        self.packetizer.REKEY_BYTES = REKEY_BYTES

    def prefer_host_key(self, kind: str) -> None:
        """Ask the server for the kind of key that is pinned, when it has several."""
        security = self.get_security_options()
        kinds = ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
        known = security.key_types
        first = [name for name in kinds if name in known]
        security.key_types = first + [name for name in known if name not in first]


def _hear_request(channel: Any, message: Any) -> None:
    """Keep the name of the signal that ended a program; paramiko drops it (exit status −1)."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.exit_signal = message.get_text()
        return
    message.packet.seek(start)
    channel._handle_request(message)


Transport._channel_handler_table = {
    **paramiko.Transport._channel_handler_table,
    MSG_CHANNEL_REQUEST: _hear_request,
}


class PinnedKey(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    """Accepts the pinned host key and no other."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Called by paramiko with the key that the server proved to hold.

        Raises:
            GuardRefused: it is not the pinned one; both fingerprints are named.
        """
        del client, hostname
        shown = f"{key.get_name()} {key.get_base64()}"
        pinned = " ".join((self._endpoint.host_key or "").split()[:2])
        if shown == pinned:
            return
        if not pinned:
            raise GuardRefused(
                "host key is not pinned",
                self._endpoint.address,
                expected="a key that somebody confirmed",
                found=fingerprint(shown),
                hint="compare it with the provider's page, then pin it with `charter attach`",
            )
        raise GuardRefused(
            "host key changed",
            self._endpoint.address,
            expected=fingerprint(pinned),
            found=fingerprint(shown),
            hint="if the instance was rebuilt, record that and pin the new key; "
            "else somebody stands between: do not go on",
        )


def fingerprint(host_key: str) -> str:
    """`ssh-ed25519 SHA256:…` of a public key line, as `ssh-keygen -l` shows it."""
    kind, _, rest = host_key.partition(" ")
    blob = base64.b64decode(rest.split()[0]) if rest.strip() else b""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"{kind} SHA256:{digest}"


@contextlib.contextmanager
def unreachable(endpoint: Endpoint) -> Iterator[None]:
    """Turn what sockets and paramiko raise into `HostUnreachable`, which says what was seen."""
    try:
        yield
    except FileNotFoundError:
        raise  # a file's, never a socket's
    except paramiko.AuthenticationException as error:
        raise HostUnreachable(
            "login refused",
            endpoint.address,
            expected=f"user {endpoint.user!r} to be let in with {str(endpoint.key_path)!r}",
            found=str(error) or type(error).__name__,
            hint="check that the public key is in the host's authorized_keys",
        ) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise HostUnreachable(
            "host does not answer",
            endpoint.address,
            expected="an SSH connection",
            found=str(error) or type(error).__name__,
            hint="what runs there is not affected; try again, or look at the provider's status",
        ) from error


def _login(endpoint: Endpoint, sock: socket.socket, left: float) -> dict[str, Any]:
    def transport(given: socket.socket, **options: Any) -> Transport:
        made = Transport(given, **options)
        made.handshake_timeout = min(LOGIN_SECONDS, left)
        if endpoint.host_key:
            made.prefer_host_key(endpoint.host_key.split()[0])
        return made

    known = {"key_filename": str(endpoint.key_path)} if endpoint.key_path else {}
    return {
        **known,
        "sock": sock,
        "transport_factory": transport,
        "timeout": left,
        "banner_timeout": min(BANNER_SECONDS, left),
        "auth_timeout": min(LOGIN_SECONDS, left),
        "channel_timeout": LOGIN_SECONDS,
        "allow_agent": False,
        "look_for_keys": False,
    }
