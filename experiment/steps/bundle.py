"""bundle: the project as a deterministic archive with its manifest, scanned for secrets."""

from __future__ import annotations

from experiment.bundle import build_bundle
from experiment.ledger import Evidence, states
from experiment.steps.session import Session
from remote.agent.files import canonical_json, sha256_bytes, sha256_file, write_json


def bundle(session: Session) -> Evidence:
    """Build the payload once per attempt; a lost file is built again and must come out equal.

    Raises:
        GuardRefused: a secret, a link that leads outside, a file that cannot be sent.
        NotFound: the project is gone.
    """

    def do(_begun: Evidence) -> Evidence:
        made = build_bundle(session.contract, session.run_dir / "bundle", skip=[session.home.root])
        write_json(
            session.run_dir / "bundle" / f"{session.job}-autodl-manifest.json", made.manifest
        )
        return {
            "payload": made.payload.name,
            "payload_path": str(made.payload),
            "payload_bytes": made.payload.stat().st_size,
            "payload_sha256": made.payload_sha256,
            "tree_sha256": made.tree_sha256,
            "manifest_sha256": sha256_bytes(canonical_json(made.manifest)),
            "project_file_count": made.manifest["project_file_count"],
            "excluded": made.excluded,
        }

    inputs = {"contract_sha256": session.run.contract_sha256, "attempt": session.attempt}
    return session.controller.once("bundle", inputs, do, to=states.PREPARED)


def rebuild(session: Session) -> None:
    """Build the payload anew where it is lost or damaged: the same project gives the same bytes."""
    build_bundle(session.contract, session.run_dir / "bundle", skip=[session.home.root])


def payload_is_there(session: Session) -> bool:
    """Whether the payload of this attempt still lies where it was built, unchanged."""
    found = session.recorded("bundle")
    path = session.run_dir / "bundle" / str(found["payload"])
    return path.is_file() and sha256_file(path) == found["payload_sha256"]
