"""The signing key: made once, kept private, never replaced."""

from __future__ import annotations

import logging
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from experiment.errors import GuardRefused
from experiment.evidence.keys import signing_key
from experiment.evidence.verify import key_id, load_public_key
from experiment.paths import Home
from remote.agent.files import sha256_bytes


def test_a_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    """0600 in a folder 0700; the second call gives the same key and mends the public file."""
    home = Home(tmp_path / "home")
    key = signing_key(home)
    assert key.path.stat().st_mode & 0o777 == 0o600
    assert key.path.parent.stat().st_mode & 0o777 == 0o700
    assert key.warnings == ()
    key.public_path.unlink()
    assert signing_key(home).key_id == key.key_id
    assert key.public_path.read_bytes() == key.public_pem
    assert key_id(load_public_key(key.public_path)) == key.key_id


def test_the_key_id_is_what_openssl_says(tmp_path: Path) -> None:
    """SHA-256 of the DER form, by a program that is not ours."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl absent")
    key = signing_key(Home(tmp_path / "home"))
    command = ["openssl", "pkey", "-pubin", "-outform", "der", "-in", str(key.public_path)]
    der = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout
    assert sha256_bytes(der) == key.key_id


def test_processes_at_once_end_with_one_key(tmp_path: Path) -> None:
    """Whoever loses the race uses the winner's key."""
    home = Home(tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: signing_key(home).key_id, range(8)))
    assert len(ids) == 1
    assert sorted(p.name for p in home.keys.iterdir()) == ["signing.key", "signing.pub"]


def test_loose_modes_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names file, mode and the command; the mode stays for its owner to see."""
    home = Home(tmp_path / "home")
    path = signing_key(home).path
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        key = signing_key(home)
    assert len(key.warnings) == 1
    assert f"chmod 600 {path}" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_is_no_key_is_refused_and_kept(tmp_path: Path) -> None:
    """A damaged key, or one of another kind, is never silently replaced."""
    home = Home(tmp_path / "home")
    home.keys.mkdir(parents=True)
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for data in (b"", b"hello", other):
        (home.keys / "signing.key").write_bytes(data)
        with pytest.raises(GuardRefused, match="signing key unusable"):
            signing_key(home)
        assert (home.keys / "signing.key").read_bytes() == data
