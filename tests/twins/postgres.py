"""A throwaway PostgreSQL on loopback, started from the system's own programs.

PostgreSQL refuses to run as root; then the `postgres` account runs it, in a folder that it owns.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiment.checks import doctor


@contextmanager
def postgres_server() -> Iterator[str]:
    """URL of an empty database; the server ends with the block."""
    initdb = doctor.find_postgres("initdb")
    ctl = doctor.find_postgres("pg_ctl")
    assert initdb is not None and ctl is not None
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with tempfile.TemporaryDirectory(prefix="charter-pg-") as scratch:
        folder = Path(scratch)
        os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        as_account = (
            {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            if os.geteuid() == 0
            else {}
        )

        def run(*argv: str | Path) -> None:
            subprocess.run(
                [str(word) for word in argv],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                **as_account,
            )

        run(initdb, "-D", data, "-U", "charter", "--auth=trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        run(ctl, "-D", data, "-o", options, "-w", "-l", folder / "log", "start")
        try:
            yield f"postgresql://charter@127.0.0.1:{port}/postgres"
        finally:
            run(ctl, "-D", data, "-m", "immediate", "-w", "stop")
