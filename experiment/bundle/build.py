"""From a contract to a payload: one pass that reads, scans, hashes and compresses.

The payload holds `project/…` and `project/.autodl/` with the agent, the trainers and the probes.
It appears under its name only when it is whole, free of secrets, and has been read back.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip

from experiment.bundle.archive import TarGz
from experiment.bundle.fixed import OWN_FOLDER
from experiment.bundle.select import Member, Options, Selection, select
from experiment.contract.model import Contract
from experiment.errors import EvidenceMismatch, GuardRefused
from remote import agent
from remote.agent.files import sha256_file
from remote.agent.manifest import differences, tree_sha256
from remote.agent.pack import build_agent
from remote.agent.secret_patterns import Scanner, scan_text

REMOTE = Path(agent.__file__).parents[1]
CARRIED = ("trainers", "probes")
# The five files that `charter bundle` leaves in its folder, which may lie in the project.
OWN_FILES = ("payload.tar.gz", "autodl-launch.sh", "autodl-status.sh", "autodl-collect.sh")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A payload and what it was made of.

    Attributes:
        payload: the archive; `payload_sha256` is of its bytes.
        tree_sha256: the digest of the manifest's entries, the same for the same content.
        manifest: the local audit record (keys of R3, and `entries`, one per file or link).
        files: `[{path, bytes, sha256}]` of what is uploaded.
        excluded: how much was left out, by reason: ignored, fixed, weights, option.
        largest: `[{path, bytes}]`, the folders that hold most.
        unscanned: `[{path, reason}]`, files that were not searched for secrets.
    """

    payload: Path
    payload_sha256: str
    tree_sha256: str
    manifest: dict[str, Any]
    files: list[dict[str, Any]]
    excluded: dict[str, int]
    largest: list[dict[str, Any]]
    unscanned: list[dict[str, str]]


def build_bundle(contract: Contract, out_dir: Path, skip: Sequence[Path] = ()) -> Bundle:
    """Write `<job>-payload.tar.gz` into `out_dir` (created when missing) and read it back.

    Args:
        contract: checked; its project folder is read.
        out_dir: where the payload goes.
        skip: folders and files of ours that may lie in the project (CHARTER_HOME).

    Raises:
        NotFound, ContractInvalid, GuardRefused: as `select`; GuardRefused also for secrets, each
            named `FILE:LINE KIND` and never shown, and for a file that changes while it is read.
        EvidenceMismatch: what was written is not what was read.
        OSError: the payload can't be written.
    """
    refuse_secret_command(contract)
    payload = out_dir / f"{contract.job}-payload.tar.gz"
    own = [out_dir / f"{contract.job}-{name}" for name in OWN_FILES]
    own.append(out_dir / f"{contract.job}-autodl-manifest.json")
    selection = select(contract.project.directory, options_of(contract, [*own, *skip]))
    with _folder(out_dir), _whole(payload) as stream:
        writer = _Writer(selection, TarGz(stream))
        writer.run()
    found = verify_payload(payload, writer.entries)
    if found != writer.archive.sha256:
        raise EvidenceMismatch(
            "payload changed on disk", str(payload), expected=writer.archive.sha256, found=found
        )
    return _bundle(contract, selection, writer, payload)


def options_of(contract: Contract, skip: Sequence[Path] = ()) -> Options:
    """The contract's own rules for what enters."""
    project = contract.project
    return Options(
        include=project.include,
        exclude=project.exclude,
        adapters=project.adapters.allow,
        adapters_max_mib=project.adapters.max_mib,
        skip=[Path(os.path.abspath(path)) for path in skip],
    )


def refuse_secret_command(contract: Contract) -> None:
    """Commands travel in manifests and logs, so a secret in one is refused (requirement 23).

    Raises:
        GuardRefused: it holds something shaped like a key; its value is not shown.
    """
    commands = {
        "project.entry_command": contract.project.entry_command,
        "run.verifier": contract.run.verifier,
        "run.test_command": contract.run.test_command,
    }
    for key, command in commands.items():
        for _, kind in scan_text(command or "")[:1]:
            raise GuardRefused(
                "secret in a command",
                key,
                found=f"{kind} (not shown)",
                hint="name it under `secrets` and read it from the environment",
            )


def verify_payload(payload: Path, entries: Sequence[dict[str, Any]]) -> str:
    """Read a payload back and compare everything in it with a manifest's entries.

    Returns:
        the SHA-256 of the payload's bytes.

    Raises:
        EvidenceMismatch: it can't be opened, or differs; names the first member that does.
        FileNotFoundError: no such payload.
    """
    digest = sha256_file(payload)
    try:
        plain = igzip.IGzipFile(payload, "rb")  # type: ignore[no-untyped-call]
        with plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            found = [_entry_of(archive, info) for info in archive]
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise EvidenceMismatch(
            "payload can't be read back", str(payload), found=str(error), hint="bundle again"
        ) from error
    different = differences(entries, found)
    if different or len(found) != len(entries):
        raise EvidenceMismatch(
            "payload differs from its manifest",
            different[0]["path"] if different else str(payload),
            expected=str(different[0]["expected"]) if different else f"{len(entries)} members",
            found=str(different[0]["found"]) if different else f"{len(found)} members",
            hint="bundle again",
        )
    return digest


class _Writer:
    """Feeds the archive in the order of paths and keeps the manifest's entries."""

    def __init__(self, selection: Selection, archive: TarGz) -> None:
        self.archive = archive
        self.entries: list[dict[str, Any]] = []
        self.unscanned: list[dict[str, str]] = []
        self._selection = selection
        self._secrets: list[str] = []

    def run(self) -> None:
        """Write everything.

        Raises:
            GuardRefused: secrets, all of them at once; a file that changed while it was read.
        """
        members: dict[str, Member | bytes] = {
            f"project/{member.path}": member for member in self._selection.members
        }
        members.update({f"project/{path}": data for path, data in carried_files().items()})
        for path in sorted(members):
            member = members[path]
            if isinstance(member, bytes):
                self._own(path, member)
            elif member.link is not None:
                self.archive.link(path, member.link)
                self.entries.append({"path": path, "link": member.link})
            else:
                self._file(path, member)
        self.archive.finish()
        if self._secrets:
            raise GuardRefused(
                "secret in the project",
                self._secrets[0],
                found=f"{len(self._secrets)} in all" if len(self._secrets) > 1 else "",
                hint="remove or exclude it; if it is real, rotate it",
                details=self._secrets if len(self._secrets) > 1 else (),
            )

    def _own(self, path: str, data: bytes) -> None:
        self.archive.file(path, data)
        self._entry(path, len(data), sha256(data).hexdigest(), executable=False)

    def _file(self, path: str, member: Member) -> None:
        scanner, digest = Scanner(), sha256()
        with _opened(self._selection.root / member.path, member) as (stream, size, executable):
            self.archive.begin_file(path, size, executable)
            left = size
            while left:
                chunk = stream.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise _changed(member.path)
                left -= len(chunk)
                digest.update(chunk)
                scanner.feed(chunk)
                self.archive.write(chunk)
            if stream.read(1):
                raise _changed(member.path)
            self.archive.end_file()
        self._entry(path, size, digest.hexdigest(), executable)
        scan = scanner.finish()
        self._secrets += [f"{member.path}:{line} {kind}" for line, kind in scan.hits]
        if scan.skipped:
            self.unscanned.append({"path": member.path, "reason": scan.skipped})

    def _entry(self, path: str, size: int, digest: str, executable: bool) -> None:
        mode = "755" if executable else "644"
        self.entries.append({"path": path, "bytes": size, "sha256": digest, "mode": mode})


def carried_files() -> dict[str, bytes]:
    """What travels in `.autodl/`: the agent, the trainers and the probes; path to bytes."""
    files = {f"{OWN_FOLDER}/agent.pyz": build_agent()}
    for folder in CARRIED:
        for path in sorted((REMOTE / folder).rglob("*")):
            relative = path.relative_to(REMOTE)
            hidden = any(part.startswith((".", "__pycache__")) for part in relative.parts)
            if path.is_file() and not hidden:
                files[f"{OWN_FOLDER}/{relative.as_posix()}"] = path.read_bytes()
    return files


@contextmanager
def _opened(path: Path, member: Member) -> Iterator[tuple[BinaryIO, int, bool]]:
    """An open project file with its size and exec bit; refused when it changes meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise GuardRefused(
            "unreadable file",
            member.path,
            found=error.strerror or "",
            hint="check its rights, or exclude it",
        ) from None
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise _changed(member.path)
        yield stream, before.st_size, bool(before.st_mode & stat.S_IXUSR)
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _changed(member.path)


def _changed(path: str) -> GuardRefused:
    return GuardRefused(
        "file changed while it was read", path, hint="stop what writes it, or exclude it"
    )


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """The folder, made when missing; one made here goes again when nothing came of it."""
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def _whole(target: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when everything went well."""
    descriptor, name = tempfile.mkstemp(prefix=".payload-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _entry_of(archive: tarfile.TarFile, info: tarfile.TarInfo) -> dict[str, Any]:
    if info.issym():
        return {"path": info.name, "link": info.linkname}
    stream = archive.extractfile(info) if info.isreg() else None
    if stream is None:
        raise ValueError(f"neither a file nor a link: {info.name!r}")
    digest = sha256()
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
    mode = "755" if info.mode & stat.S_IXUSR else "644"
    return {"path": info.name, "bytes": info.size, "sha256": digest.hexdigest(), "mode": mode}


def _bundle(contract: Contract, selection: Selection, writer: _Writer, payload: Path) -> Bundle:
    digest = tree_sha256(writer.entries)
    upload = {
        "path": payload.name,
        "bytes": writer.archive.size,
        "sha256": writer.archive.sha256,
    }
    largest = [dict(item) for item in selection.largest]
    manifest: dict[str, Any] = {
        "schema_version": 1,
        "status": "ready",
        "job": contract.job,
        "project_dir": str(contract.project.directory),
        "project_file_count": len(selection.members),
        **_commands(contract),
        "tree_sha256": digest,
        "files": [upload],
        "excluded": selection.excluded,
        "largest": largest,
        "unscanned": writer.unscanned,
        "entries": writer.entries,
    }
    return Bundle(
        payload=payload,
        payload_sha256=writer.archive.sha256,
        tree_sha256=digest,
        manifest=manifest,
        files=[upload],
        excluded=selection.excluded,
        largest=largest,
        unscanned=writer.unscanned,
    )


def _commands(contract: Contract) -> dict[str, Any]:
    """What is started and with which model, in R3's keys (requirements 8, 9 and 11)."""
    model = contract.model
    return {
        "entry_command": contract.project.entry_command,
        "trainer": contract.project.trainer,
        "config": contract.project.config,
        "model_id": model and (model.id or model.name),
        "model_source": model and model.source,
        "model_revision": model and model.revision,
        "runtime_quantization": (model and model.quantization) or "unspecified",
        "bitwise_reproducible": contract.bitwise_reproducible,
    }
