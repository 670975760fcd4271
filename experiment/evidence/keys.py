"""The Ed25519 key that signs this controller's seals, and the public keys it knows.

`keys/signing.key` (PKCS#8 PEM, 0600) and `keys/signing.pub` (PEM) lie under CHARTER_HOME; further
people's public keys go to `keys/known/*.pub`. A key's id is the SHA-256 of its DER form:
`openssl pkey -pubin -outform der < signing.pub | sha256sum`.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from experiment.errors import GuardRefused
from experiment.evidence import verify
from experiment.paths import Home
from remote.agent.files import write_atomic

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SigningKey:
    """A private key, where it lies, and what is wrong with its place (empty: nothing)."""

    private: Ed25519PrivateKey
    path: Path
    warnings: tuple[str, ...] = ()

    @property
    def public_path(self) -> Path:
        return self.path.with_suffix(".pub")

    @property
    def public_raw(self) -> bytes:
        """The 32 bytes of the public key."""
        return self.private.public_key().public_bytes_raw()

    @property
    def public_pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def key_id(self) -> str:
        """Hex SHA-256 of the public key's DER form."""
        return verify.key_id(self.public_raw)


def signing_key(home: Home) -> SigningKey:
    """The home's signing key; made when there is none, its public half written beside it.

    Modes that let others in are warned about (log, and `warnings` of the key), not changed: who
    loosened them has to know that the key may have been read.

    Raises:
        GuardRefused: the file is no Ed25519 private key. It is never replaced.
    """
    path = home.keys / "signing.key"
    if not path.exists():
        _generate(path)
    key = SigningKey(_load(path), path, tuple(_loose(path)))
    for warning in key.warnings:
        log.warning("%s", warning)
    if not key.public_path.exists() or key.public_path.read_bytes() != key.public_pem:
        write_atomic(key.public_path, key.public_pem)
    return key


def known_keys(home: Home) -> list[Path]:
    """Public key files that make a signer `pinned`: this home's own, and `keys/known/*.pub`."""
    own = home.keys / "signing.pub"
    return [*([own] if own.exists() else []), *sorted((home.keys / "known").glob("*.pub"))]


def _generate(path: Path) -> None:
    """Make a key, exclusively: of two processes at once, both end with the same one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    handle, name = tempfile.mkstemp(prefix=".signing.", dir=path.parent)  # 0600 by mkstemp
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(pem)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            log.info("another process made the signing key first: %s", path)
    finally:
        os.unlink(name)


def _load(path: Path) -> Ed25519PrivateKey:
    hint = "restore it from a backup, or move it away so that a new one is made"
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise GuardRefused(
            "signing key unusable",
            str(path),
            expected="an Ed25519 private key in PEM without a password",
            found=str(error).splitlines()[0][:120],
            hint=hint,
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise GuardRefused(
            "signing key unusable",
            str(path),
            expected="an Ed25519 private key",
            found=type(private).__name__,
            hint=hint,
        )
    return private


def _loose(path: Path) -> list[str]:
    return [
        f"signing key open to others: {place}: mode {stat.S_IMODE(place.stat().st_mode):o}, "
        f"expected {wanted:o}; run: chmod {wanted:o} {place}"
        for place, wanted in ((path, 0o600), (path.parent, 0o700))
        if stat.S_IMODE(place.stat().st_mode) & 0o077
    ]
