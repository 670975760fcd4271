"""What would happen, and what it could cost at worst. Changes nothing, here or anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from experiment.contract.fields import money_text
from experiment.contract.inputs import Resolved, resolve_inputs
from experiment.contract.model import Contract
from experiment.contract.warnings import highest_rate, warnings_of, wind_down_seconds

_SECONDS = Decimal(3600)


@dataclass(frozen=True)
class Plan:
    """The keys of the interface page's `plan`, and what an approval binds beside the contract.

    Attributes:
        contract: canonical, every key resolved.
        steps: `[{name, does}]` in order.
        worst_case: `{amount, currency, hours}`; amount is a string, hours a number.
        warnings: `[{key, message}]`.
        inputs: `[{name, kind, source, id, revision, files, tree_sha256, …}]`.
        wind_down_seconds: between the trainer's last moment and the host's.
    """

    contract: dict[str, Any]
    contract_sha256: str
    steps: list[dict[str, str]]
    worst_case: dict[str, Any]
    warnings: list[dict[str, str]]
    inputs: list[dict[str, Any]]
    wind_down_seconds: int
    bitwise_reproducible: bool

    def as_json(self) -> dict[str, Any]:
        """As `charter plan --json` prints it."""
        return {
            "contract": self.contract,
            "contract_sha256": self.contract_sha256,
            "steps": self.steps,
            "worst_case": self.worst_case,
            "warnings": self.warnings,
            "inputs": self.inputs,
            "wind_down_seconds": self.wind_down_seconds,
            "bitwise_reproducible": self.bitwise_reproducible,
        }


def make_plan(contract: Contract, seconds_per_step: float | None = None) -> Plan:
    """Resolve inputs and bounds.

    Args:
        contract: as loaded.
        seconds_per_step: the pace of an earlier run of the job, for the checkpoint warnings.

    Raises:
        NotFound, GuardRefused: as `resolve_inputs`.
    """
    inputs = resolve_inputs(contract)
    seconds, amount = worst_case(contract)
    return Plan(
        contract=contract.canonical(),
        contract_sha256=contract.sha256,
        steps=steps_of(contract, inputs),
        worst_case={
            "amount": money_text(amount),
            "currency": contract.billing.currency,
            "hours": round(seconds / 3600, 4),
        },
        warnings=list(warnings_of(contract, inputs, seconds, seconds_per_step)),
        inputs=[item.as_json() for item in inputs],
        wind_down_seconds=wind_down_seconds(inputs),
        bitwise_reproducible=contract.bitwise_reproducible,
    )


def worst_case(contract: Contract) -> tuple[int, Decimal]:
    """(seconds, money) at the highest allowed price: whichever of the two caps binds first."""
    billing = contract.billing
    rate = highest_rate(contract)
    hours = Decimal(str(billing.max_hours))
    amount = min(billing.max_total, hours * rate)
    affordable = hours if hours * rate <= billing.max_total else billing.max_total / rate
    return int((affordable * _SECONDS).to_integral_value(ROUND_FLOOR)), amount


def steps_of(contract: Contract, inputs: tuple[Resolved, ...]) -> list[dict[str, str]]:
    """The table of the whole life, in the words of this contract."""
    rows = (*_before_spending(contract, inputs), *_on_the_host(contract, inputs), *_after(contract))
    return [{"name": name, "does": does} for name, does in rows]


def _before_spending(
    contract: Contract, inputs: tuple[Resolved, ...]
) -> tuple[tuple[str, str], ...]:
    files = sum(len(item.files or ()) for item in inputs)
    total = sum(item.bytes for item in inputs)
    gate = {
        "ask": "ask a person to approve this plan, these digests and the worst case",
        "preauthorised": "take the contract's bounds as the approval, and record it",
        "signed": "wait for an approval signed by `charter approve`",
    }[contract.billing.approval]
    return (
        (
            "plan",
            f"fix the contract {contract.sha256[:12]} and {len(inputs)} input(s): {files} files, "
            f"{total} bytes",
        ),
        (
            "bundle",
            f"pack {contract.project.directory.name} with agent, trainers and probes; refuse "
            "secrets",
        ),
        ("approve", gate),
    )


def _on_the_host(contract: Contract, inputs: tuple[Resolved, ...]) -> tuple[tuple[str, str], ...]:
    host, project = contract.host, contract.project
    cards = ", else ".join(
        f"{gpu.count} × {gpu.name} at up to {money_text(contract.rate_cap(gpu))} "
        f"{contract.billing.currency}/h"
        for gpu in host.gpus
    )
    how = {
        "venv": "make or reuse a virtual environment on the data disk",
        "conda": f"use the conda environment {host.environment.name}",
        "none": "use the host's own Python",
    }[host.environment.kind]
    packages = f"install {project.requirements}" if project.requirements else "install nothing"
    names = ", ".join(item.item.name for item in inputs) or "no inputs"
    start = (
        f"trainer {project.trainer} with {project.config}"
        if project.trainer
        else f"{project.entry_command}"
    )
    return (
        ("rent", f"provider {host.provider}: {cards}"),
        ("arm", "place the agent, compare its hash, start the watchdog with both deadlines"),
        (
            "preflight",
            f"check Python, {host.min_free_gib} GiB of disk, {host.min_vram_gib} GiB of VRAM",
        ),
        ("upload", "send what is missing, compare sizes and digests on the host"),
        ("environment", f"{how}; {packages}; freeze the package list"),
        ("snapshot", f"re-hash every file of {names}"),
        ("preflight_full", "check imports, CUDA, quantization, signatures, shards, tokenizer"),
        ("launch", f"start detached: {start}"),
        ("monitor", "watch exit record, metrics and log until a verdict"),
    )


def _after(contract: Contract) -> tuple[tuple[str, str], ...]:
    run, billing = contract.run, contract.billing
    verifier = f" and `{run.verifier}`" if run.verifier else ""
    off = {
        "keep": "leave the host on, as the contract says",
        "stop": "stop the instance, wait for the provider's confirmation, state the cost",
        "release": "stop and release the instance after approval, state the cost",
    }[billing.shutdown]
    return (
        ("collect", "scan for secrets, stream the archive here, hash it at both ends"),
        ("verify", f"recompute every hash, check {', '.join(run.artifacts)}{verifier}"),
        ("shutdown", off),
        ("store", f"keep by digest in {contract.store or 'the folder store'}, read back"),
        ("seal", "sign the count and head of the chain"),
    )
