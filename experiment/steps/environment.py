"""environment: the payload unpacked and the job's Python environment, shared by its digest."""

from __future__ import annotations

from experiment.ledger import Evidence, states
from experiment.steps.session import Session
from experiment.steps.upload import payload_item


def environment(session: Session) -> Evidence:
    """Unpack the payload (hash first) and make or reuse the environment.

    Raises:
        GuardRefused: the payload's hash differs; nothing was extracted.
        RemoteStepFailed: no Python (127), or pip failed.
    """
    bundle = session.recorded("bundle")
    wanted = session.contract.host.environment
    requirements = session.contract.project.requirements
    payload = payload_item(session)

    def do(_begun: Evidence) -> Evidence:
        door = session.door()
        unpacked = door.call(
            "unpack",
            {
                "payload": payload.remote,
                "payload_sha256": payload.sha256,
                "tree_sha256": bundle["tree_sha256"],
            },
            ref=session.request(),
            timeout=600,
        )
        made = door.call(
            "environment",
            {"kind": wanted.kind, "name": wanted.name, "requirements": requirements},
            ref=session.request(),
            timeout=3600,
        )
        return {
            **made,
            "project_dir": unpacked["project_dir"],
            "tree_sha256": bundle["tree_sha256"],
        }

    inputs = {
        **session.incarnation(),
        "payload": payload.sha256,
        "kind": wanted.kind,
        "name": wanted.name,
        "requirements": requirements,
    }
    return session.controller.once("environment", inputs, do, to=states.BOOTSTRAPPING)
