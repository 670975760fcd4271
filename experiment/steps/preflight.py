"""preflight: basic before anything is sent or installed, full before the launch."""

from __future__ import annotations

from collections.abc import Mapping
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
    fields = {
        "python": environment["python"],
        "project_dir": environment["project_dir"],
        "probes": list(probes(session)),
        "args": probes(session, snapshot),
    }

    def do(_begun: Evidence) -> Evidence:
        found = session.door().call("probe", fields, ref=session.request(_fresh()), timeout=600)
        return _passed(found, "full preflight")

    inputs = {
        **session.incarnation(),
        "environment": environment["key"],
        "bundle": session.recorded("bundle")["tree_sha256"],
        "snapshot": [item["tree_sha256"] for item in snapshot["inputs"]],
    }
    return session.controller.once("preflight_full", inputs, do)


def probes(
    session: Session, snapshot: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The probes that this contract needs, each with its arguments."""
    contract = session.contract
    gpu = contract.host.gpus[0]
    asked: dict[str, dict[str, Any]] = {}
    if contract.project.trainer:
        asked["imports"] = {"modules": _modules(session)}
        asked["trl_signatures"] = {"trainer": contract.project.trainer}
    if contract.project.trainer or gpu.name != "any" or contract.host.min_vram_gib:
        asked["cuda"] = {
            "count": gpu.count,
            "name": gpu.name,
            "min_vram_gib": contract.host.min_vram_gib,
            "required": gpu.name != "any" or contract.host.min_vram_gib > 0,
        }
    if any((item.quantization or "").lower().startswith(("nf4", "4bit", "qlora"))
           for item in contract.inputs):
        asked["nf4"] = {}
    model = contract.model
    if model is not None and snapshot is not None:
        folder = next(i["path"] for i in snapshot["inputs"] if i["name"] == model.name)
        asked["shards"] = {"model_path": folder}
        asked["tokenizer"] = {"model_path": folder}
    elif model is not None:
        asked["shards"] = asked["tokenizer"] = {}
    return asked


def _modules(session: Session) -> list[str]:
    quantized = any(item.quantization for item in session.contract.inputs)
    return ["torch", "transformers", "trl", "datasets", *(["bitsandbytes"] if quantized else [])]


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
