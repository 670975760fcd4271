"""Signed statements: in-toto Statement v1 in a DSSE envelope, in canonical bytes.

A subject is a file (its SHA-256 as digest; bytes and exec bit as annotations) or a symbolic link
(the SHA-256 of its target as digest, the target as annotation). The predicate names the signer's
public key, so that `verify.py` needs no other file to check the signature; whether that key is to
be trusted is the verifier's question (pinned or not).

Sources: https://github.com/in-toto/attestation (Statement v1), https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from securesystemslib.dsse import Envelope

# The package offers these names without listing them for type checkers.
from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]

from experiment.evidence import verify
from experiment.evidence.keys import SigningKey
from remote.agent.files import canonical_json, sha256_bytes


def subject(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The in-toto subject of a manifest entry (`path bytes sha256 mode`, or `path link`)."""
    if "link" in entry:
        digest = sha256_bytes(os.fsencode(entry["link"]))
        notes: dict[str, Any] = {"link": entry["link"]}
    else:
        digest = entry["sha256"]
        notes = {"bytes": entry["bytes"], "mode": entry["mode"]}
    return {"name": entry["path"], "digest": {"sha256": digest}, "annotations": notes}


def signed_statement(
    predicate_type: str,
    entries: Iterable[Mapping[str, Any]],
    predicate: Mapping[str, Any],
    key: SigningKey,
) -> bytes:
    """The bytes of a signed envelope over the entries; the same input gives the same bytes.

    Args:
        predicate_type: a URI, one of those in `verify.py`.
        entries: manifest entries of what the statement is about.
        predicate: further facts, JSON; `signer` is added.

    Raises:
        ValueError: a name or value without a canonical form.
    """
    signer = {"key_id": key.key_id, "public_key": key.public_raw.hex()}
    payload = canonical_json(
        {
            "_type": verify.STATEMENT_TYPE,
            "subject": [subject(entry) for entry in entries],
            "predicateType": predicate_type,
            "predicate": {**predicate, "signer": signer},
        }
    )
    public = SSlibKey.from_crypto(key.private.public_key(), keyid=key.key_id)
    envelope = Envelope(payload, verify.PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(key.private, public))
    return canonical_json(envelope.to_dict())
