"""A store in an S3 bucket: AWS, or any server that speaks its checksums and conditions.

Every byte is sent with its SHA-256, which the server checks; contents are written only where
nothing is (`If-None-Match: *`), so that two writers can't overwrite each other; and everything is
read back and hashed here. Credentials and endpoint are boto3's own: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL_S3`, `AWS_REGION`, or its configuration files.
Memory: one part (16 MiB, more for files over 144 GiB) for each file in flight.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from experiment.errors import (
    CharterError,
    ContractInvalid,
    EvidenceMismatch,
    GuardRefused,
    HostUnreachable,
    NotFound,
    RemoteStepFailed,
)
from experiment.results.store_keys import digest_key
from remote.agent.files import CHUNK_BYTES

PART_BYTES = 16 << 20
MAX_PARTS = 9000  # S3 allows 10,000

_ABSENT = {"NoSuchKey", "NotFound", "404"}
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


class S3Store:
    """Contents and documents under a prefix of a bucket."""

    def __init__(self, client: Any, bucket: str, prefix: str, part_bytes: int = PART_BYTES) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._part_bytes = part_bytes
        self.url = f"s3://{bucket}/{self._prefix}".rstrip("/")

    @classmethod
    def open(cls, url: str) -> S3Store:
        """The store at `s3://bucket/prefix`; nothing is asked of the server yet.

        Raises:
            ContractInvalid: a URL without a bucket.
        """
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise ContractInvalid("store not understood", repr(url), expected="s3://bucket/prefix")
        config = Config(
            connect_timeout=10,
            read_timeout=60,
            retries={"mode": "standard", "max_attempts": 4},
            max_pool_connections=16,
        )
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        # A session of its own: boto3's shared one is not safe among threads.
        session = boto3.session.Session()
        client = session.client("s3", config=config, region_name=region or "us-east-1")
        return cls(client, parts.netloc, parts.path)

    def put_file(self, path: Path, sha256: str) -> str:
        key = digest_key(sha256)
        with self._told(key):
            if self.has(key):
                if self._hash(key) == sha256:
                    return key
                self._client.delete_object(**self._at(key))  # damaged: written anew below
            self._send(path, key, sha256)
            found = self._hash(key)
        if found != sha256:
            raise EvidenceMismatch(
                "read back differently",
                f"{self.url}/{key}",
                expected=sha256,
                found=found,
                hint="repeat: the damaged object is then replaced",
            )
        return key

    def get_file(self, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        digest, wanted = hashlib.sha256(), key.rsplit("/", 1)[-1]
        try:
            with os.fdopen(handle, "wb") as sink, self._told(key):
                for chunk in self._chunks(key):
                    digest.update(chunk)
                    sink.write(chunk)
                sink.flush()
                os.fchmod(sink.fileno(), 0o644)
                os.fsync(sink.fileno())
            if digest.hexdigest() != wanted:
                raise EvidenceMismatch(
                    "content damaged",
                    f"{self.url}/{key}",
                    expected=wanted,
                    found=digest.hexdigest(),
                )
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def has(self, key: str) -> bool:
        with self._told(key):
            try:
                self._client.head_object(**self._at(key))
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return False
                raise
        return True

    def put_document(self, key: str, data: bytes) -> None:
        with self._told(key):
            checksum = _base64(hashlib.sha256(data).digest())
            self._client.put_object(**self._at(key), Body=data, ChecksumSHA256=checksum)
        if self.get_document(key) != data:
            raise EvidenceMismatch("read back differently", f"{self.url}/{key}", hint="repeat")

    def get_document(self, key: str) -> bytes:
        with self._told(key):
            return b"".join(self._chunks(key))

    def _send(self, path: Path, key: str, sha256: str) -> None:
        """Send a file once; losing a race against an equal writer is as good as winning it."""
        size = path.stat().st_size
        try:
            if size > self._part_bytes:
                self._send_parts(path, key, sha256, size)
                return
            data = path.read_bytes()
            _same(path, sha256, hashlib.sha256(data).hexdigest())
            checksum = _base64(bytes.fromhex(sha256))
            self._client.put_object(
                **self._at(key), Body=data, ChecksumSHA256=checksum, IfNoneMatch="*"
            )
        except ClientError as error:
            if _code(error) not in _TAKEN:
                raise

    def _send_parts(self, path: Path, key: str, sha256: str, size: int) -> None:
        at = self._at(key)
        upload = self._client.create_multipart_upload(**at, ChecksumAlgorithm="SHA256")["UploadId"]
        try:
            parts = self._upload_parts(path, at, upload, sha256, size)
            self._client.complete_multipart_upload(
                **at, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except BaseException:
            # Unfinished parts are billed; the failure that led here is the one to tell.
            with contextlib.suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**at, UploadId=upload)
            raise

    def _upload_parts(
        self, path: Path, at: dict[str, str], upload: str, sha256: str, size: int
    ) -> list[dict[str, Any]]:
        part_bytes = max(self._part_bytes, -(-size // MAX_PARTS))
        whole = hashlib.sha256()
        parts: list[dict[str, Any]] = []
        with path.open("rb") as stream:
            while data := stream.read(part_bytes):
                whole.update(data)
                checksum = _base64(hashlib.sha256(data).digest())
                number = len(parts) + 1
                answer = self._client.upload_part(
                    **at, UploadId=upload, PartNumber=number, Body=data, ChecksumSHA256=checksum
                )
                parts.append(
                    {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}
                )
        _same(path, sha256, whole.hexdigest())
        return parts

    def _hash(self, key: str) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(key):
            digest.update(chunk)
        return digest.hexdigest()

    def _chunks(self, key: str) -> Iterator[bytes]:
        body = self._client.get_object(**self._at(key))["Body"]
        with contextlib.closing(body):
            yield from body.iter_chunks(CHUNK_BYTES)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Every foreign exception in Charter's words, with the object's URL."""
        try:
            yield
        except ClientError as error:
            raise self._translated(error, f"{self.url}/{key}") from error
        except NoCredentialsError as error:
            raise GuardRefused(
                "store refused",
                self.url,
                found="no S3 credentials",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ) from error
        except BotoCoreError as error:
            raise HostUnreachable(
                "store does not answer",
                self.url,
                found=str(error),
                hint="check AWS_ENDPOINT_URL_S3 and the network, then repeat",
                exit_code=1,
            ) from error

    def _translated(self, error: ClientError, url: str) -> CharterError:
        code = _code(error)
        message = str(error.response.get("Error", {}).get("Message") or code)
        if code in _ABSENT:
            return NotFound("not in the store", url, exit_code=1)
        if code == "NoSuchBucket":
            hint = "create the bucket, or change `store` in the contract"
            return NotFound("no such bucket", self._bucket, hint=hint, exit_code=1)
        if code in {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}:
            hint = "check the credentials and the bucket's policy"
            return GuardRefused("store refused", url, found=f"{code}: {message}", hint=hint)
        return RemoteStepFailed("store failed", url, found=f"{code}: {message}", hint="repeat")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _same(path: Path, expected: str, found: str) -> None:
    if expected != found:
        raise EvidenceMismatch(
            "store refused",
            str(path),
            expected=expected,
            found=found,
            hint="the file changed while it was stored",
        )
