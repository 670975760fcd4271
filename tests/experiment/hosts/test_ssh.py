"""What can happen to an SSH connection while it is in use."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from experiment.errors import HostUnreachable, UsageError
from experiment.hosts.base import Endpoint
from experiment.hosts.ssh import SshHost

pytestmark = pytest.mark.sshd


def login_processes(endpoint: Endpoint) -> list[psutil.Process]:
    """sshd's processes that hold a connection to the endpoint's port."""
    found = []
    for connection in psutil.net_connections(kind="tcp"):
        if not connection.pid or connection.laddr.port != endpoint.port or not connection.raddr:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(connection.pid)
            if process.name().startswith("sshd"):
                found.append(process)
    return found


def listener(endpoint: Endpoint) -> psutil.Process:
    """The sshd that accepts connections."""
    (pid,) = {
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.laddr.port == endpoint.port and connection.status == psutil.CONN_LISTEN
    }
    return psutil.Process(pid)


@contextlib.contextmanager
def soon(action: threading.Thread) -> Iterator[None]:
    action.start()
    yield
    action.join()


def cut(endpoint: Endpoint, after: float) -> threading.Thread:
    """A thread that ends the server's side of every connection a little later."""

    def act() -> None:
        time.sleep(after)
        for process in login_processes(endpoint):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    return threading.Thread(target=act)


def test_a_cut_while_a_program_runs_is_unreachable(ssh_host: SshHost, endpoint: Endpoint) -> None:
    """The call ends at once and is not repeated; the next one opens a new connection."""
    ssh_host.run(["true"], timeout=10)
    begun = time.monotonic()
    with soon(cut(endpoint, 0.3)), pytest.raises(HostUnreachable):
        ssh_host.run(["sleep", "20"], timeout=30)
    assert time.monotonic() - begun < 5
    assert ssh_host.run(["echo", "back"], timeout=10).stdout == b"back\n"


def test_a_connection_that_died_meanwhile_is_opened_again(
    ssh_host: SshHost, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A call that never started on the host may be repeated: nobody notices the cut."""
    (tmp_path / "file").write_bytes(b"x")
    for call in (
        lambda: ssh_host.run(["true"], timeout=10),
        lambda: ssh_host.read(str(tmp_path / "file"), timeout=10),
        lambda: ssh_host.write(b"y", str(tmp_path / "other"), timeout=10),
    ):
        ssh_host.read(str(tmp_path / "file"), timeout=10)
        for process in login_processes(endpoint):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)  # the cut travels to this side
        call()


def test_a_host_that_freezes_is_unreachable_not_slow(ssh_host: SshHost, endpoint: Endpoint) -> None:
    """Silence of the host is told from slowness of a program, and ends in time."""
    ssh_host.run(["true"], timeout=10)
    frozen = [*login_processes(endpoint), listener(endpoint)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        for call in (
            lambda: ssh_host.run(["true"], timeout=1),
            lambda: ssh_host.read("/etc/passwd", timeout=1),
        ):
            begun = time.monotonic()
            with pytest.raises(HostUnreachable):
                call()
            assert time.monotonic() - begun < 4
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    assert ssh_host.run(["true"], timeout=10).returncode == 0


def test_a_frozen_login_is_left_for_a_new_one(ssh_host: SshHost, endpoint: Endpoint) -> None:
    """When only the old connection hangs, the call goes over to a new one and succeeds."""
    ssh_host.run(["true"], timeout=10)
    frozen = login_processes(endpoint)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        assert ssh_host.run(["echo", "new"], timeout=4).stdout == b"new\n"
    finally:
        for process in frozen:
            process.kill()


def test_a_freeze_while_a_program_runs_is_unreachable(
    ssh_host: SshHost, endpoint: Endpoint
) -> None:
    """No end and no sign of life is exit 75; a program that is merely slow is exit 124."""
    ssh_host.run(["true"], timeout=10)
    frozen = login_processes(endpoint)

    def freeze() -> None:
        time.sleep(0.3)
        for process in frozen:
            process.send_signal(signal.SIGSTOP)

    try:
        with soon(threading.Thread(target=freeze)), pytest.raises(HostUnreachable):
            ssh_host.run(["sleep", "20"], timeout=1)
    finally:
        for process in frozen:
            process.kill()


def test_many_threads_share_one_connection(endpoint: Endpoint) -> None:
    """A closed host that many ask at once is opened once, and every answer finds its caller."""
    host = SshHost(endpoint)
    before = {process.pid for process in login_processes(endpoint)}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: host.run(["echo", str(n)], timeout=20), range(24)))
    opened = {process.pid for process in login_processes(endpoint)} - before
    assert [int(answer.stdout) for answer in answers] == list(range(24))
    # As an ordinary user sshd has two processes for one login.
    assert 1 <= len(opened) <= 2
    host.close()


def test_a_cut_put_leaves_no_file(ssh_host: SshHost, endpoint: Endpoint, tmp_path: Path) -> None:
    """Half a file never stands under the file's name."""
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.write_bytes(os.urandom(2_000_000))

    def progress(sent: int, total: int) -> None:
        for process in login_processes(endpoint):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    with pytest.raises(HostUnreachable):
        ssh_host.put(local, str(remote), timeout=10, progress=progress)
    assert not remote.exists()
    ssh_host.put(local, str(remote), timeout=10)
    assert remote.read_bytes() == local.read_bytes()


def test_a_command_line_that_would_end_the_connection_is_refused(ssh_host: SshHost) -> None:
    """sshd drops the connection over 300 KB: said before it is sent."""
    with pytest.raises(UsageError, match="too long"):
        ssh_host.run(["echo", "x" * 200_000], timeout=10)


def test_a_kept_connection_answers_fast(ssh_host: SshHost) -> None:
    """TCP_NODELAY is on: a call takes milliseconds, not the 45 of delayed acknowledgements."""
    ssh_host.run(["true"], timeout=10)
    times = []
    for _ in range(15):
        begun = time.perf_counter()
        ssh_host.run(["true"], timeout=10)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.03
