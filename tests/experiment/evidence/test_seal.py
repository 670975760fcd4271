"""The seal: what it covers, what it refuses, and that others can read it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

from experiment.errors import EvidenceMismatch, GuardRefused, NotFound
from experiment.evidence import verify
from experiment.evidence.keys import signing_key
from experiment.evidence.seal import seal
from experiment.paths import Home
from remote.agent.files import sha256_file
from tests.experiment.evidence.sealed_folder import JOB, RUN_ID, chained, fill, sealed


def test_the_evidence_tells_count_head_and_digest(tmp_path: Path) -> None:
    """What goes into the ledger is what lies in the folder; the same input seals the same."""
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    key = signing_key(Home(tmp_path / "home"))
    entries = chained(["plan", "bundle", "rent"])
    given = {"job": JOB, "run_id": RUN_ID, "entries": entries, "key": key}
    evidence = seal(tmp_path / "results", **given)
    path = tmp_path / "results" / evidence["seal"]
    assert evidence == {
        "seal": "evidence/seal.dsse.json",
        "sha256": sha256_file(path),
        "count": 3,
        "head": entries[-1]["sha256"],
        "files": 13,
        "key_id": key.key_id,
    }
    (path.parent / ".seal.dsse.json.abc123").write_bytes(b"left by a kill")
    assert seal(tmp_path / "results", **given) == evidence
    assert verify.verify_path(tmp_path / "results")["ok"]


def test_the_envelope_is_dsse_and_in_toto(tmp_path: Path) -> None:
    """securesystemslib, which knows nothing of us, accepts the signature and the statement."""
    folder, key = sealed(tmp_path)
    value = json.loads((folder / verify.SEAL).read_bytes())
    envelope = Envelope.from_dict(json.loads((folder / verify.SEAL).read_bytes()))
    public = SSlibKey.from_crypto(key.private.public_key(), keyid=key.key_id)
    assert list(envelope.verify([public], 1)) == [key.key_id]
    statement = json.loads(base64.b64decode(value["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    subjects = {item["name"]: item for item in statement["subject"]}
    assert "verify.py" in subjects
    assert "evidence/signer.pub" in subjects
    assert verify.SEAL not in subjects
    assert subjects["tool.sh"]["annotations"]["mode"] == "755"
    assert subjects["checkpoints/latest"]["annotations"] == {"link": "../model"}
    assert all(len(item["digest"]["sha256"]) == 64 for item in subjects.values())


def test_a_new_seal_takes_in_what_came_later(tmp_path: Path) -> None:
    """After a later step the folder is sealed again, over more entries and files."""
    folder, key = sealed(tmp_path)
    (folder / "late.json").write_text("{}")
    assert not verify.verify_path(folder)["ok"]
    entries = chained(["a"] * 7)
    assert seal(folder, job=JOB, run_id=RUN_ID, entries=entries, key=key)["count"] == 7
    assert verify.verify_path(folder)["ok"]


def test_a_broken_or_foreign_chain_is_not_sealed(tmp_path: Path) -> None:
    """A seal never covers up a ledger that was tampered with."""
    folder, key = sealed(tmp_path)
    before = sha256_file(folder / verify.SEAL)
    entries = chained(["a", "b"])
    entries[0]["evidence"]["reward"] = 9
    with pytest.raises(EvidenceMismatch):
        seal(folder, job=JOB, run_id=RUN_ID, entries=entries, key=key)
    with pytest.raises(EvidenceMismatch, match="expected other/"):
        seal(folder, job="other", run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert sha256_file(folder / verify.SEAL) == before


def test_what_cannot_be_sealed_is_named(tmp_path: Path) -> None:
    """Pipes and names without UTF-8 are refused, all at once."""
    folder, key = sealed(tmp_path)
    os.mkfifo(folder / "pipe")
    with open(os.fsencode(folder) + b"/caf\xe9", "wb"):
        pass
    with pytest.raises(GuardRefused) as refused:
        seal(folder, job=JOB, run_id=RUN_ID, entries=chained(["a"]), key=key)
    assert len(refused.value.details) == 2
    with pytest.raises(NotFound):
        seal(tmp_path / "nowhere", job=JOB, run_id=RUN_ID, entries=[], key=key)
