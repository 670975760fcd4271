"""launch: the trainer, detached, once per attempt."""

from __future__ import annotations

import os
from typing import Any

from experiment.errors import ApprovalRefused, CharterError
from experiment.ledger import Evidence, states
from experiment.steps.session import Session

# The agent answers when PID, start time, log and launch record agree, or after this long.
GRACE_SECONDS = 20


def launch(session: Session) -> Evidence:
    """Start the trainer under its supervisor. The same request never starts a second one.

    Raises:
        Mismatch: this attempt was launched with other inputs.
        Busy: a trainer of the job is alive.
        RemoteStepFailed: the program is not there.
        StepTimeout: no answer in time; it may run, and the next walk finds it.
        CharterError: a secret that the contract names is not in this environment.
    """
    environment = session.recorded("environment")
    snapshot = session.recorded("snapshot")
    fields = _fields(session, environment, snapshot)

    def do(_begun: Evidence) -> Evidence:
        # Approval is bound to hashes: looked at once more where the money turns into work.
        grant = session.grant
        if environment["tree_sha256"] != grant.digests["bundle"]:
            raise ApprovalRefused(
                "launch refused",
                f"run {session.run_id}",
                expected=f"the approved bundle {grant.digests['bundle'][:12]}",
                found=f"bundle {environment['tree_sha256'][:12]} on the host",
            )
        secrets = _secrets(session)
        return session.door().call(
            "launch",
            {**fields, "secrets": secrets} if secrets else fields,
            ref=session.request(),
            timeout=GRACE_SECONDS + 60,
        )

    def recover(_begun: Evidence) -> Evidence | None:
        """A launch of this request on the host is this launch, whatever grant or secret is there
        now: asked again, the agent answers from its record and starts nothing."""
        door = session.door()
        seen = door.call(
            "status", {"run_root": session.run_root}, ref=session.request(), timeout=60
        )
        if seen["launch"]["request_id"] != session.request().request_id("launch"):
            return None
        return door.call("launch", fields, ref=session.request(), timeout=GRACE_SECONDS + 60)

    inputs = {
        **session.incarnation(),
        "attempt": session.attempt,
        "argv": fields["argv"],
        "environment": environment["key"],
        "bundle": environment["tree_sha256"],
        "snapshot": [item["tree_sha256"] for item in snapshot["inputs"]],
        "secrets": sorted(session.contract.secrets),
    }
    return session.controller.once(
        "launch", inputs, do, recover=recover, to=states.RUNNING, single=True
    )


def _fields(session: Session, environment: Evidence, snapshot: Evidence) -> dict[str, Any]:
    project = session.contract.project
    if project.trainer:
        argv = [
            environment["python"],
            "-u",
            f"{environment['project_dir']}/.autodl/trainers/{project.trainer}.py",
            "--config",
            str(project.config),
        ]
    else:
        argv = ["bash", "-c", str(project.entry_command)]
    model = session.contract.model
    return {
        "argv": argv,
        "cwd": environment["project_dir"],
        "env": dict(session.contract.run.env),
        "run_root": session.run_root,
        "python": environment["python"],
        "model_path": next(
            (i["path"] for i in snapshot["inputs"] if model and i["name"] == model.name), None
        ),
        "runtime_quantization": (model.quantization if model else None) or "unspecified",
        "artifacts": list(session.contract.run.artifacts),
        "payload_sha256": session.recorded("bundle")["payload_sha256"],
        "grace_seconds": GRACE_SECONDS,
    }


def _secrets(session: Session) -> dict[str, str]:
    """The named secrets from this process's environment; the values go to the host and nowhere."""
    missing = [name for name in session.contract.secrets if name not in os.environ]
    if missing:
        raise CharterError(
            "secret is not set",
            ", ".join(missing),
            expected="environment variables of the runner",
            found="none",
            hint="export them where `charter up` runs, then run again",
        )
    return {name: os.environ[name] for name in session.contract.secrets}
