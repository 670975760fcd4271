"""A throw-away OpenSSH server on loopback, as the present user, in a folder of its own.

Key only, no PAM, own host key, own HOME and PATH by SetEnv. Options as measured in the project's
notes; `sshd -t` tells what a system still wants.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from experiment.errors import RemoteStepFailed
from experiment.providers.local_folder import InstanceFolder
from remote.agent.files import write_atomic

SEARCHED = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/local/bin", "/sbin")
BANNER_SECONDS = 5.0
PORT_TRIES = 5
LOOPBACK = "127.0.0.1"


def find_sshd(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The server's absolute path, or None and the reason why no SSH can be had here.

    `CHARTER_LOCAL_SSHD` names another one, or `none`.
    """
    given = environ.get("CHARTER_LOCAL_SSHD", "")
    if given == "none":
        return None, "CHARTER_LOCAL_SSHD=none"
    path = os.pathsep.join((environ.get("PATH", ""), *SEARCHED))
    # sshd must be started by its absolute path: it runs itself again for each connection.
    found = shutil.which(given or "sshd", path=path)
    if found is None:
        return None, f"no OpenSSH server found ({given or 'sshd'}, in PATH and {SEARCHED[0]})"
    if _password_locked():
        return None, "the account's password is locked, which OpenSSH without PAM refuses"
    return os.path.realpath(found), ""


def make_keys(folder: InstanceFolder) -> str:
    """Write a fresh host key and login key; returns the public host key, to be pinned."""
    folder.sshd.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_key(folder.login_key, public=folder.authorized_keys)
    return _write_key(folder.host_key)


def write_config(folder: InstanceFolder, sshd: str, port: int, env: Mapping[str, str]) -> None:
    """Write `sshd_config` for one power-on."""
    settings: list[tuple[str, ...]] = [
        ("ListenAddress", LOOPBACK),
        ("Port", str(port)),
        ("HostKey", str(folder.host_key)),
        ("AuthorizedKeysFile", _escape(str(folder.authorized_keys))),
        ("PidFile", "none"),
        ("UsePAM", "no"),
        ("StrictModes", "no"),
        ("PermitRootLogin", "prohibit-password"),
        ("PubkeyAuthentication", "yes"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        ("AllowUsers", getpass.getuser()),
        ("X11Forwarding", "no"),
        ("PrintMotd", "no"),
        ("PrintLastLog", "no"),
        ("UseDNS", "no"),
        ("LoginGraceTime", "30"),
        ("MaxStartups", "64:30:128"),
        ("MaxSessions", "64"),
        ("Subsystem", "sftp", "internal-sftp"),
        ("SetEnv", *(f"{name}={value}" for name, value in sorted(env.items()))),
    ]
    if _version(sshd) >= (9, 8):
        # Tests log in wrongly on purpose; the penalty would hit the next right login.
        settings.append(("PerSourcePenalties", "no"))
    lines = [" ".join((name, *map(_quote, values))) for name, *values in settings]
    write_atomic(folder.sshd_config, ("\n".join(lines) + "\n").encode(), 0o600)


def check_config(folder: InstanceFolder, sshd: str) -> None:
    """Let sshd judge its configuration; as root its missing empty folder is made.

    Raises:
        RemoteStepFailed: sshd can't run here; its own words are given.
    """
    for _ in range(2):
        judged = subprocess.run(
            [sshd, "-t", "-f", str(folder.sshd_config)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if judged.returncode == 0:
            return
        missing = re.search(r"Missing privilege separation directory: (\S+)", judged.stderr)
        if not missing or os.geteuid() != 0:
            break
        Path(missing.group(1)).mkdir(mode=0o755, parents=True, exist_ok=True)
    raise RemoteStepFailed(
        "SSH server can't be started here",
        sshd,
        found=judged.stderr.strip().replace("\n", " · ")[:400] or f"exit {judged.returncode}",
        hint="set CHARTER_LOCAL_SSHD=none to do without SSH",
    )


def start_sshd(
    folder: InstanceFolder,
    sshd: str,
    env: Mapping[str, str],
    *,
    wanted: int | None = None,
    avoided: int | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server and wait for its banner (about 40 ms).

    Args:
        env: the environment of what is started over SSH, and of the server itself.
        wanted: the port to take when it is free.
        avoided: a port not to take.

    Raises:
        RemoteStepFailed: it does not come up.
    """
    for attempt in range(PORT_TRIES):
        port = free_port(wanted if attempt == 0 else None, other_than=avoided)
        write_config(folder, sshd, port, env)
        with open(folder.sshd_log, "ab") as log:
            process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(folder.sshd_config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(env),
                cwd="/",
            )
        if _wait_for_banner(process, port):
            return process, port
        process.kill()
        process.wait()
    said = folder.sshd_log.read_text("utf-8", "replace").strip().splitlines()
    raise RemoteStepFailed(
        "SSH server does not come up",
        sshd,
        found=said[-1] if said else "silence",
        hint=f"see {folder.sshd_log}",
    )


def free_port(wanted: int | None = None, *, other_than: int | None = None) -> int:
    """A free TCP port on loopback: the wanted one when it is, and never `other_than`."""
    if wanted and wanted != other_than and _bind(wanted) == wanted:
        return wanted
    while (port := _bind(0)) in (None, other_than):
        pass
    assert port is not None
    return port


def _bind(port: int) -> int | None:
    with socket.socket() as sock:
        # As sshd does: a port whose old connections are in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return None
        return int(sock.getsockname()[1])


def _wait_for_banner(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + BANNER_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection((LOOPBACK, port), 1.0) as sock:
                if sock.recv(4) == b"SSH-":
                    return True
        except OSError:
            time.sleep(0.005)
    return False


def _write_key(path: Path, public: Path | None = None) -> str:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomic(path, private, 0o600)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if public is not None:
        write_atomic(public, line + b"\n", 0o600)
    return line.decode("ascii")


def _password_locked() -> bool:
    """Whether sshd without PAM would refuse this account (Linux, as root: else it can't tell)."""
    try:
        lines = Path("/etc/shadow").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    me = f"{getpass.getuser()}:"
    return any(line.startswith(f"{me}!") for line in lines)


def _version(sshd: str) -> tuple[int, int]:
    # Old servers know no -V, and print their version with the complaint.
    told = subprocess.run([sshd, "-V"], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", told.stderr + told.stdout)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _escape(path: str) -> str:
    return path.replace("%", "%%")  # sshd expands %h and the like in paths


def _quote(value: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9@%_+=:,./-]+", value)
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
