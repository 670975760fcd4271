"""preflight: basic before anything is sent or installed, full before the launch."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from experiment.errors import GuardRefused
from experiment.ledger import Evidence
from experiment.steps.session import Session

_MIN_FREE_INODES = 20_000


def preflight(session: Session) -> Evidence:
    """Disk, inodes, GPU and VRAM by the standard library alone.

    Raises:
        GuardRefused: a check failed; nothing was uploaded or installed.
    """
    host = session.contract.host
    gpu = host.gpus[0]
    fields = {
        "min_free_gib": host.min_free_gib,
        "min_free_inodes": _MIN_FREE_INODES,
        "gpu_count": gpu.count,
        "gpu_name": gpu.name,
        "min_vram_gib": host.min_vram_gib,
        "cuda_min": host.cuda_min,
    }

    def do(_begun: Evidence) -> Evidence:
        found = session.door().call("preflight", fields, ref=session.request(_fresh()), timeout=60)
        return _passed(found, "basic preflight")

    return session.controller.once("preflight", {**session.incarnation(), "asked": fields}, do)


def preflight_full(session: Session) -> Evidence:
    """What needs the job's environment: imports, CUDA, NF4, signatures, shards, tokenizer.

    Raises:
        GuardRefused: a check failed; nothing was launched.
    """
    environment = session.recorded("environment")
    snapshot = session.recorded("snapshot")
    model = session.contract.model
    model_path = next(
        (i["path"] for i in snapshot["inputs"] if model is not None and i["name"] == model.name),
        None,
    )
    asked = probes(session, model_path)
    fields = {
        "python": environment["python"],
        "project_dir": environment["project_dir"],
        # One process for all: importing torch and trl costs more than every probe together.
        "probes": ["full"] if asked else [],
        "args": {"full": {"probes": asked}},
        "run_root": session.run_root,
        "env": dict(session.contract.run.env),
        "model_path": model_path,
    }

    inputs = {
        **session.incarnation(),
        "environment": environment["key"],
        "bundle": session.recorded("bundle")["tree_sha256"],
        "snapshot": [item["tree_sha256"] for item in snapshot["inputs"]],
        "asked": asked,
    }

    def do(_begun: Evidence) -> Evidence:
        # Nothing of what is asked about has changed, not even the host's boot: importing the whole
        # stack once more would tell nothing new. The basic checks were made anew all the same.
        known = session.ledger.done_elsewhere("preflight_full", inputs)
        if known is not None:
            return {**known["evidence"], "reused_from": known["run_id"]}
        found = session.door().call("probe", fields, ref=session.request(_fresh()), timeout=600)
        return _passed(found, "full preflight")

    return session.controller.once("preflight_full", inputs, do)


def probes(session: Session, model_path: str | None) -> dict[str, dict[str, Any]]:
    """The probes that this contract needs, each with its arguments.

    A project with an entry command of its own is asked only about what the contract names.
    """
    contract = session.contract
    gpu = contract.host.gpus[0]
    bound = gpu.name != "any" or contract.host.min_vram_gib > 0
    quantization = next((item.quantization for item in contract.inputs if item.quantization), None)
    asked: dict[str, dict[str, Any]] = {}
    if contract.project.trainer:
        asked["imports"] = {"modules": _modules(quantization)}
        asked["trl_signatures"] = {"trainer": contract.project.trainer}
    if contract.project.trainer or bound:
        asked["cuda"] = {
            "required": bound,
            "count": gpu.count,
            "name": gpu.name,
            "min_vram_gib": contract.host.min_vram_gib,
        }
    if quantization is not None:
        asked["nf4"] = {"quantization": quantization}
    if model_path is not None and contract.project.trainer:
        asked["shards"] = {"model_path": model_path}
        asked["tokenizer"] = {"model_path": model_path}
    return asked


def _modules(quantization: str | None) -> list[str]:
    return ["torch", "transformers", "trl", "datasets", *(["bitsandbytes"] if quantization else [])]


def _fresh() -> str:
    """A check asks about now: the agent must not give its last answer again."""
    return uuid4().hex[:12]


def _passed(found: Evidence, what: str) -> Evidence:
    if found["status"] == "PASS":
        return found
    failed = [check for check in found["checks"] if check["status"] == "FAIL"]
    first = failed[0]
    raise GuardRefused(
        f"{what} refused",
        str(first["name"]),
        expected=str(first["expected"]),
        found=str(first["found"]),
        hint=str(first["fix"]),
        details=[
            f"{c['name']}: expected {c['expected']}, found {c['found']}; {c['fix']}" for c in failed
        ],
    )
