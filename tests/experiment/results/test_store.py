"""The same promises, kept by a folder and by a real S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import (
    CharterError,
    ContractInvalid,
    EvidenceMismatch,
    GuardRefused,
    HostUnreachable,
    NotFound,
)
from experiment.evidence.verify import verify_path
from experiment.paths import Home
from experiment.results.folder_store import FolderStore
from experiment.results.s3_store import S3Store
from experiment.results.store import Store, fetch_results, open_store, store_results
from experiment.results.store_keys import digest_key, index_key
from remote.agent.files import canonical_json, sha256_bytes
from tests.experiment.evidence.sealed_folder import JOB, RUN_ID, fill, sealed
from tests.twins.s3_server import S3Server

BUCKET = "results"
PART = 5 << 20  # the smallest part that S3 takes


@dataclass
class Kept:
    """A store, and a way to look and reach behind its back."""

    store: Store
    spoil: Callable[[str, bytes], Any]
    raw: Callable[[str], bytes]


def _folder(tmp_path: Path) -> Kept:
    root = tmp_path / "store"
    store = FolderStore(root)
    return Kept(
        store, lambda key, data: (root / key).write_bytes(data), lambda k: (root / k).read_bytes()
    )


def _s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Kept:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = server.client()
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    prefix = uuid.uuid4().hex
    store = S3Store(client, BUCKET, prefix, part_bytes=PART)
    return Kept(
        store,
        lambda key, data: client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=data),
        lambda key: client.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read(),
    )


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def kept(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kept]:
    if request.param == "folder":
        yield _folder(tmp_path)
    else:
        yield _s3(request.getfixturevalue("s3_server"), monkeypatch)


def made(path: Path, data: bytes) -> tuple[Path, str]:
    path.write_bytes(data)
    return path, sha256_bytes(data)


def test_a_file_goes_in_by_digest_and_comes_back(kept: Kept, tmp_path: Path) -> None:
    """The key is the digest, an equal second put is no second object, an empty file is a file."""
    for data in (b"", b"hello", bytes(1000)):
        path, digest = made(tmp_path / "in", data)
        key = kept.store.put_file(path, digest)
        assert key == f"sha256/{digest[:2]}/{digest}"
        assert kept.store.put_file(path, digest) == key
        assert kept.store.has(key)
        assert kept.raw(key) == data
        kept.store.get_file(key, tmp_path / "out" / "file")
        assert (tmp_path / "out" / "file").read_bytes() == data


def test_a_big_file_goes_in_parts(kept: Kept, tmp_path: Path) -> None:
    """Whole parts, a short last one, and exactly one part over the limit."""
    for size in (PART, PART + 1, 2 * PART + 12345):
        path, digest = made(tmp_path / "big", os.urandom(size))
        key = kept.store.put_file(path, digest)
        kept.store.get_file(key, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_a_wrong_digest_is_refused_and_leaves_nothing(kept: Kept, tmp_path: Path) -> None:
    """A file that is not what it is called never lies under that name, small or big."""
    for size in (100, 2 * PART):
        path, _ = made(tmp_path / "in", os.urandom(size))
        wrong = sha256_bytes(os.urandom(8))
        with pytest.raises(EvidenceMismatch) as refused:
            kept.store.put_file(path, wrong)
        assert refused.value.exit_code == 2
        assert not kept.store.has(digest_key(wrong))


def test_a_damaged_object_is_found_and_replaced(kept: Kept, tmp_path: Path) -> None:
    """Same size, other bytes: reading says so and keeps the old file, a new put repairs it."""
    path, digest = made(tmp_path / "in", b"right")
    key = kept.store.put_file(path, digest)
    kept.spoil(key, b"wrong")
    target = tmp_path / "out"
    target.write_bytes(b"before")
    with pytest.raises(EvidenceMismatch) as damaged:
        kept.store.get_file(key, target)
    assert digest in str(damaged.value)
    assert target.read_bytes() == b"before"
    kept.store.put_file(path, digest)
    assert kept.raw(key) == b"right"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".part")] == []


def test_what_is_not_there_is_not_found(kept: Kept, tmp_path: Path) -> None:
    """Absent contents and documents are `not_found`, exit 1."""
    key = digest_key("0" * 64)
    assert not kept.store.has(key)
    with pytest.raises(NotFound) as absent:
        kept.store.get_file(key, tmp_path / "out")
    assert absent.value.exit_code == 1
    with pytest.raises(NotFound):
        kept.store.get_document("runs/none/none.json")
    assert not (tmp_path / "out").exists()


def test_documents_are_replaced(kept: Kept) -> None:
    """A name holds the newest document."""
    for data in (b"{}", b'{"a": 1}'):
        kept.store.put_document("runs/job/run.json", data)
        assert kept.store.get_document("runs/job/run.json") == data


def test_two_writers_of_one_content_both_succeed(kept: Kept, tmp_path: Path) -> None:
    """Racing puts of the same digest end in one object and no error."""
    path, digest = made(tmp_path / "in", os.urandom(4096))
    failures: list[CharterError] = []

    def put() -> None:
        try:
            kept.store.put_file(path, digest)
        except CharterError as error:
            failures.append(error)

    threads = [threading.Thread(target=put) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert kept.raw(digest_key(digest)) == path.read_bytes()


def test_a_run_goes_in_and_comes_back_verified(kept: Kept, tmp_path: Path) -> None:
    """A sealed folder, restored, verifies: exec bits, links and odd names included."""
    results, _ = sealed(tmp_path)
    evidence = store_results(results, kept.store, JOB, RUN_ID)
    assert evidence["stored"] is True
    assert evidence["url"] == kept.store.url
    assert evidence["index_key"] == index_key(JOB, RUN_ID)
    assert evidence["files"] == sum(1 for p in results.rglob("*") if p.is_symlink() or p.is_file())
    assert store_results(results, kept.store, JOB, RUN_ID) == evidence
    entries = fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")
    assert len(entries) == evidence["files"]
    assert verify_path(tmp_path / "back")["ok"]
    assert fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back") == entries
    assert sha256_bytes(kept.raw(evidence["index_key"])) == evidence["index_sha256"]


def test_a_changed_run_replaces_its_index(kept: Kept, tmp_path: Path) -> None:
    """After a repair the index names the new contents; the old ones stay under their digests."""
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    (tmp_path / "results" / "summary.json").write_bytes(b"new")
    store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")
    assert (tmp_path / "back" / "summary.json").read_bytes() == b"new"
    assert kept.store.has(digest_key(sha256_bytes(b'{"reward": 0.9}')))


def test_the_index_comes_last(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that breaks in the middle has no index, and a repeat completes it."""
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    put, calls = kept.store.put_file, []

    def breaking(path: Path, sha256: str) -> str:
        calls.append(path)
        if len(calls) == 4:
            raise OSError("disk gone")
        return put(path, sha256)

    monkeypatch.setattr(kept.store, "put_file", breaking)
    with pytest.raises(OSError, match="disk gone"):
        store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    with pytest.raises(NotFound):
        kept.store.get_document(index_key(JOB, RUN_ID))
    assert store_results(tmp_path / "results", kept.store, JOB, RUN_ID)["stored"]


def test_a_damaged_content_stops_the_fetch(kept: Kept, tmp_path: Path) -> None:
    """A restored folder never holds a file with other bytes than the run's."""
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    kept.spoil(digest_key(sha256_bytes(b'{"reward": 0.9}')), b'{"reward": 1.0}')
    with pytest.raises(EvidenceMismatch):
        fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")
    assert not (tmp_path / "back" / "summary.json").exists()


HOSTILE: dict[str, dict[str, Any]] = {
    "absolute": {"path": "/etc/x", "sha256": "0" * 64},
    "parent": {"path": "../x", "sha256": "0" * 64},
    "inner parent": {"path": "a/../../x", "sha256": "0" * 64},
    "dot": {"path": ".", "sha256": "0" * 64},
    "empty": {"path": "", "sha256": "0" * 64},
    "zero byte": {"path": "a\0b", "sha256": "0" * 64},
    "absolute link": {"path": "a", "link": "/etc/passwd"},
    "leading out": {"path": "a/b", "link": "../../etc/passwd"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_index_that_leads_outside_is_refused(name: str, tmp_path: Path) -> None:
    """A store is not trusted with paths."""
    kept = _folder(tmp_path)
    index = {"schema_version": 1, "job": JOB, "run_id": RUN_ID, "files": [HOSTILE[name]]}
    kept.store.put_document(index_key(JOB, RUN_ID), canonical_json(index))
    with pytest.raises(GuardRefused):
        fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"schema_version": 2, "files": []}', b'{"schema_version":1,"files":[{}]}'],
)
def test_an_index_without_sense_is_refused(data: bytes, tmp_path: Path) -> None:
    """Another version, or no index at all, is told as evidence that does not fit."""
    kept = _folder(tmp_path)
    kept.store.put_document(index_key(JOB, RUN_ID), data)
    with pytest.raises(EvidenceMismatch):
        fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")


def test_fetch_does_not_mix_with_other_files(tmp_path: Path) -> None:
    """A folder with something else in it is refused, not merged."""
    kept = _folder(tmp_path)
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "mine").write_bytes(b"")
    with pytest.raises(EvidenceMismatch):
        fetch_results(kept.store, JOB, RUN_ID, tmp_path / "back")


def test_a_link_that_leads_outside_is_not_stored(tmp_path: Path) -> None:
    """What could not be fetched again is refused by name before anything is written."""
    kept = _folder(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "out").symlink_to("../../x")
    with pytest.raises(GuardRefused) as refused:
        store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    assert "'out'" in str(refused.value)
    assert not (tmp_path / "store").exists()
    with pytest.raises(NotFound):
        store_results(tmp_path / "nowhere", kept.store, JOB, RUN_ID)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """64 MiB pass through a folder store in chunks."""
    kept = _folder(tmp_path)
    path = tmp_path / "big"
    with path.open("wb") as sink:
        sink.truncate(64 << 20)
    digest = hashlib.sha256(bytes(64 << 20)).hexdigest()
    tracemalloc.start()
    key = kept.store.put_file(path, digest)
    kept.store.get_file(key, tmp_path / "back")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_open_store_reads_the_contract_s_line(tmp_path: Path) -> None:
    """None, a relative folder, a home folder, file:// and s3://; others are named."""
    home, base = Home(tmp_path / "home"), tmp_path / "project"
    assert open_store(None, base, home).url == str(tmp_path / "home" / "store")
    assert open_store("kept here", base, home).url == str(base / "kept here")
    assert open_store(f"file://{tmp_path}/x", base, home).url == str(tmp_path / "x")
    assert open_store("s3://bucket/a/b/", base, home).url == "s3://bucket/a/b"
    assert open_store("s3://bucket", base, home).url == "s3://bucket"
    for bad in ("s3://", "ftp://host/x", "", "s3:///key", "https://bucket/x"):
        with pytest.raises(ContractInvalid):
            open_store(bad, base, home)


@pytest.mark.s3
def test_s3_objects_carry_their_sha256(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server knows the checksum that was sent, and keeps no unfinished upload."""
    kept = _s3(s3_server, monkeypatch)
    store, client = kept.store, s3_server.client()
    assert isinstance(store, S3Store)
    path, digest = made(tmp_path / "in", b"hello")
    where = {
        "Bucket": BUCKET,
        "Key": store.url.split("/", 3)[3] + "/" + store.put_file(path, digest),
    }
    answer = client.head_object(**where, ChecksumMode="ENABLED")
    assert answer["ChecksumSHA256"] == "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="
    big, _ = made(tmp_path / "big", os.urandom(2 * PART))
    with pytest.raises(EvidenceMismatch):
        store.put_file(big, "0" * 64)
    assert client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []


def _refused_secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another one")
    return f"s3://{BUCKET}/x"


def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    return f"s3://{BUCKET}/x"


def _no_server(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return f"s3://{BUCKET}/x"


@pytest.mark.s3
@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (_refused_secret, GuardRefused),
        (_no_credentials, GuardRefused),
        (_no_server, HostUnreachable),
    ],
)
def test_s3_failures_are_told_in_charter_s_words(
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch], str],
    kind: type[CharterError],
) -> None:
    """No foreign exception leaves the store; the line says what to do; the step can be repeated."""
    _s3(s3_server, monkeypatch)
    url = prepare(monkeypatch)
    store = open_store(url, tmp_path, Home(tmp_path))
    path, digest = made(tmp_path / "in", b"hello")
    with pytest.raises(kind) as failed:
        store.put_file(path, digest)
    assert failed.value.hint
    assert failed.value.exit_code == (2 if kind is GuardRefused else 1)


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_told(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket is named as such, not as a missing object."""
    _s3(s3_server, monkeypatch)
    store = open_store("s3://no-such-bucket/x", tmp_path, Home(tmp_path))
    with pytest.raises(NotFound, match="no such bucket: no-such-bucket"):
        store.get_document("runs/a/b.json")


def test_the_index_names_everything(tmp_path: Path) -> None:
    """The index is the manifest of the folder, in canonical bytes."""
    kept = _folder(tmp_path)
    (tmp_path / "results").mkdir()
    fill(tmp_path / "results")
    evidence = store_results(tmp_path / "results", kept.store, JOB, RUN_ID)
    index = json.loads(kept.raw(evidence["index_key"]))
    assert canonical_json(index) == kept.raw(evidence["index_key"])
    by_path = {entry["path"]: entry for entry in index["files"]}
    assert by_path["tool.sh"]["mode"] == "755"
    assert by_path["checkpoints/latest"] == {"path": "checkpoints/latest", "link": "../model"}
    assert (index["job"], index["run_id"]) == (JOB, RUN_ID)
