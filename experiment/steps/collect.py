"""collect: the run's files here, streamed over the connection and hashed at both ends."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from experiment.errors import EvidenceMismatch, GuardRefused
from experiment.ledger import Evidence, states
from experiment.results.archive import check_inventory, unpack_archive
from experiment.steps.session import Session
from remote.agent.files import sha256_file, write_json

COLLECTABLE = (states.COMPLETED, states.PARTIAL, states.FAILED, states.COLLECTED)


def collect(session: Session) -> Evidence:
    """Inventory on the host, archive through the connection, unpacked into the results folder.

    From PARTIAL or FAILED it is a salvage, which is never verified.

    Raises:
        GuardRefused: a secret in a file of the run (file and kind named), or nothing to collect.
        EvidenceMismatch: what arrived is not what was sent.
    """
    state = session.state()
    if state not in COLLECTABLE and not session.is_done("collect"):
        raise GuardRefused(
            "collect refused",
            f"run {session.run_id}",
            expected="one of " + ", ".join(COLLECTABLE),
            found=str(state),
            hint="charter status",
        )
    launched = session.recorded("launch")

    def do(_begun: Evidence) -> Evidence:
        door = session.door()
        wanted = session.contract.run.collect
        listed = door.call(
            "collect",
            {
                "run_root": session.run_root,
                "include": list(wanted.include),
                "exclude": list(wanted.exclude),
                "artifacts": list(session.contract.run.artifacts),
            },
            ref=session.request(),
            timeout=1800,
        )
        archive, sent = _receive(session, listed["inventory_sha256"])
        unpack_archive(archive, session.results)
        return {
            "archive": archive.name,
            "archive_bytes": archive.stat().st_size,
            "archive_sha256": sent["sha256"],
            "inventory_sha256": listed["inventory_sha256"],
            "file_count": listed["file_count"],
            "total_bytes": listed["total_bytes"],
            "skipped": listed["skipped"],
            "results": str(session.results),
        }

    inputs = {
        "pid": launched["pid"],
        "start": launched["start"],
        "from": state_collected(session),
        "repeat": _repeat(session),
    }
    return session.controller.once("collect", inputs, do, to=states.COLLECTED)


def _repeat(session: Session) -> int:
    """How often the results were collected before: once more when what lies here is damaged."""
    times: int = sum(
        entry["step"] == "collect" and entry["phase"] == "done"
        for entry in session.ledger.entries(session.run_id)
        if entry["attempt"] == session.attempt
    )
    if times == 0:
        return 0
    archive = session.results / f"{session.job}-results.tar.gz"
    recorded = session.recorded("collect")["archive_sha256"]
    whole = archive.is_file() and sha256_file(archive) == recorded
    return times - 1 if whole and not check_inventory(session.results) else times


def state_collected(session: Session) -> str:
    """The state whose files are collected: a later look must not seem another collection."""
    entered = [
        entry["to"]
        for entry in session.ledger.entries(session.run_id)
        if entry["to"] in (states.COMPLETED, states.PARTIAL, states.FAILED)
    ]
    return entered[-1] if entered else ""


def _receive(session: Session, inventory_sha256: str) -> tuple[Path, dict[str, Any]]:
    """The archive beside its sidecar in the results folder; written aside, then renamed."""
    session.results.mkdir(parents=True, exist_ok=True)
    target = session.results / f"{session.job}-results.tar.gz"
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    with part.open("wb") as file:

        def sink(chunk: bytes) -> None:
            digest.update(chunk)
            file.write(chunk)

        sent = session.door().stream(
            "archive",
            {"run_root": session.run_root, "inventory_sha256": inventory_sha256},
            sink,
            ref=session.request(),
            timeout=3600,
        )
    if digest.hexdigest() != sent["sha256"] or part.stat().st_size != sent["bytes"]:
        raise EvidenceMismatch(
            "archive did not arrive whole",
            target.name,
            expected=f"{sent['bytes']} bytes, {sent['sha256']}",
            found=f"{part.stat().st_size} bytes, {digest.hexdigest()}",
            hint="charter collect RUN",
        )
    part.replace(target)
    write_json(
        str(target) + ".json",
        {
            "status": "packaged",
            "archive": target.name,
            "archive_bytes": sent["bytes"],
            "archive_sha256": sent["sha256"],
            "inventory": "artifact_inventory.json",
        },
    )
    return target, sent
