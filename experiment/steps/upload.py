"""upload: payload and folder inputs on the host, sizes and digests read back there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiment.contract.slug import slugify
from experiment.errors import EvidenceMismatch
from experiment.ledger import Evidence, states
from experiment.steps.bundle import payload_is_there, rebuild
from experiment.steps.session import Session
from experiment.transfer.upload import Item
from experiment.transfer.upload import upload as send


def upload(session: Session) -> Evidence:
    """Send what is missing on the host, and compare there.

    Raises:
        EvidenceMismatch: a file arrived as another one, or the payload here is not the approved.
        HostUnreachable: the link broke more often than a transfer is repeated.
    """
    bundle = session.recorded("bundle")
    items = [payload_item(session), *input_items(session)]
    inputs = {
        **session.incarnation(),
        "files": {item.remote: item.sha256 for item in items},
        "bundle": bundle["payload_sha256"],
    }

    def do(_begun: Evidence) -> Evidence:
        if not payload_is_there(session):
            rebuild(session)
        if not payload_is_there(session):
            raise EvidenceMismatch(
                "payload is not the approved one",
                str(items[0].local),
                expected=str(bundle["payload_sha256"]),
                found="another file, or none",
                hint="charter run --new",
            )
        return send(session.door(), items, session.request())

    return session.controller.once("upload", inputs, do, to=states.UPLOADED)


def payload_item(session: Session) -> Item:
    bundle = session.recorded("bundle")
    name = str(bundle["payload"])
    return Item(
        local=session.run_dir / "bundle" / name,
        remote=f"{session.data_root.rstrip('/')}/jobs/{session.job}/incoming/{name}",
        sha256=str(bundle["payload_sha256"]),
        bytes=int(bundle["payload_bytes"]),
    )


def input_items(session: Session) -> list[Item]:
    """The files of inputs that lie in a folder here; hubs are read by the host itself."""
    items = []
    for planned in session.recorded("plan", any_attempt=True)["inputs"]:
        if planned["source"] != "folder":
            continue
        folder = input_folder(session, planned)
        for file in planned["files"]:
            items.append(
                Item(
                    local=Path(planned["folder"]) / file["path"],
                    remote=f"{folder}/{file['path']}",
                    sha256=str(file["sha256"]),
                    bytes=int(file["bytes"]),
                )
            )
    return items


def input_folder(session: Session, planned: dict[str, Any]) -> str:
    """Where an input lies on the host: named by what it is and by its content."""
    slug = slugify(str(planned.get("id") or planned["name"]).replace("/", "-"))
    return f"{session.data_root.rstrip('/')}/models/{slug}-{str(planned['tree_sha256'])[:12]}"
