"""verify: everything recomputed here, the required artifacts, and the run's own verifier."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from experiment.errors import EvidenceMismatch, RemoteStepFailed
from experiment.ledger import Evidence, states
from experiment.results.archive import check_inventory, refuse_secrets, require_artifacts
from experiment.steps.session import Session
from remote.agent.files import sha256_file, write_json

VERIFIER_SECONDS = 1800


def verify(session: Session) -> Evidence:
    """Enter VERIFIED, or raise and stay COLLECTED: the host is then held, not shut down.

    Raises:
        EvidenceMismatch: a file is missing or differs from the inventory or the sidecar.
        RemoteStepFailed: the run's verifier said no; its last lines are in the message.
    """
    collected = session.recorded("collect")

    def do(_begun: Evidence) -> Evidence:
        archive = session.results / str(collected["archive"])
        if sha256_file(archive) != collected["archive_sha256"]:
            raise EvidenceMismatch(
                "archive differs",
                archive.name,
                expected=str(collected["archive_sha256"]),
                found="another digest",
                hint=f"charter collect {session.run_id}",
            )
        broken = check_inventory(session.results)
        if broken:
            raise EvidenceMismatch(
                "results differ",
                str(broken[0]["path"]),
                expected=str(broken[0]["expected"]),
                found=str(broken[0]["found"]),
                hint=f"charter collect {session.run_id}",
                details=[f"{item['path']}: {item['link']}" for item in broken],
            )
        skipped = refuse_secrets(session.results)
        present = require_artifacts(session.results, session.contract.run.artifacts)
        return {
            "checked": collected["file_count"],
            "artifacts": present,
            "secret_scan_skipped": skipped,
            "verifier": _run_verifier(session),
            "archive_sha256": collected["archive_sha256"],
        }

    inputs = {"archive": collected["archive_sha256"], "verifier": session.contract.run.verifier}
    return session.controller.once("verify", inputs, do, to=states.VERIFIED)


def _run_verifier(session: Session) -> dict[str, Any]:
    """The command of the contract, on the host, in the job's environment."""
    command = session.contract.run.verifier
    if command is None:
        return {"command": None, "note": "the contract names no verifier"}
    environment = session.recorded("environment", any_attempt=True)
    snapshot = session.recorded("snapshot", any_attempt=True)
    model = session.contract.model
    found = session.door().call(
        "verify_run",
        {
            "command": command,
            "python": environment["python"],
            "cwd": environment["project_dir"],
            "run_root": session.run_root,
            "timeout_seconds": VERIFIER_SECONDS,
            "env": dict(session.contract.run.env),
            "model_path": next(
                (i["path"] for i in snapshot["inputs"] if model and i["name"] == model.name), None
            ),
        },
        ref=session.request(uuid4().hex[:12]),
        timeout=VERIFIER_SECONDS + 60,
    )
    evidence = {"command": command, **found}
    write_json(session.results / "verifier.json", evidence)
    if found["exit_code"] != 0:
        raise RemoteStepFailed(
            "the run's verifier said no",
            f"{command!r} of run {session.run_id}",
            expected="exit 0",
            found=f"exit {found['exit_code']}: {_last_line(str(found['output_tail']))}",
            hint=f"look at verifier.json in {session.results}; the host is held, then stopped",
        )
    return evidence


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
