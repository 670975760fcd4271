"""snapshot: every input on the host, each file re-hashed, the completion marker last."""

from __future__ import annotations

from experiment.ledger import Evidence
from experiment.steps.session import Session
from experiment.steps.upload import input_folder


def snapshot(session: Session) -> Evidence:
    """Re-hash the inputs on the host against what was planned and approved.

    Raises:
        EvidenceMismatch: a file differs; it is named.
    """
    planned = session.recorded("plan", any_attempt=True)["inputs"]
    asked = [
        {
            "name": item["name"],
            "kind": item["kind"],
            "source": item["source"],
            "id": item["id"],
            "revision": item["revision"],
            "quantization": item["quantization"],
            "path": input_folder(session, item),
            "files": item["files"],
        }
        for item in planned
    ]

    def do(_begun: Evidence) -> Evidence:
        return session.door().call(
            "snapshot", {"inputs": asked}, ref=session.request(), timeout=3600
        )

    inputs = {**session.incarnation(), "inputs": [item["tree_sha256"] for item in planned]}
    return session.controller.once("snapshot", inputs, do)
