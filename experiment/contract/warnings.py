"""What a person should know before paying: results at risk, bounds that do not fit together.

A warning is `{key, message}`; the key is the contract's (dotted). Nothing here refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from experiment.contract.fields import duration_text, money_text
from experiment.contract.inputs import Resolved
from experiment.contract.model import Contract
from experiment.contract.strict_yaml import YamlFault, parse
from experiment.money.deadlines import MIN_WIND_DOWN_SECONDS

# Cautious figures for a network disk and a home connection, bytes a second.
CHECKPOINT_RATE = 100_000_000
DOWNLOAD_RATE = 10_000_000
# Weights, and Adam's two moments in 32 bit beside weights in 16 bit.
CHECKPOINT_FACTOR = 5
GIB = 1024**3


def wind_down_seconds(inputs: Sequence[Resolved]) -> int:
    """Seconds between the trainer's end and the host's: a full checkpoint and a collection of
    something as large as the models, at least ten minutes."""
    models = sum(item.bytes for item in inputs if item.item.kind == "model")
    estimate = models * CHECKPOINT_FACTOR / CHECKPOINT_RATE + models / DOWNLOAD_RATE
    return max(MIN_WIND_DOWN_SECONDS, int(estimate))


def warnings_of(
    contract: Contract,
    inputs: Sequence[Resolved],
    affordable_seconds: int,
    seconds_per_step: float | None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, str]]:
    """Every warning.

    Args:
        contract: the resolved contract.
        inputs: its inputs, resolved.
        affordable_seconds: what the caps buy at the highest allowed price.
        seconds_per_step: of an earlier run of the job, where there is one.
        environment: where secrets are looked for; this process's by default.
    """
    yield from _bounds(contract, inputs, affordable_seconds)
    yield from _losses(contract, inputs, affordable_seconds, seconds_per_step)
    yield from _pins(contract, inputs)
    yield from _rest(contract, os.environ if environment is None else environment)


def _warning(key: str, message: str) -> dict[str, str]:
    return {"key": key, "message": message}


def _bounds(
    contract: Contract, inputs: Sequence[Resolved], affordable: int
) -> Iterator[dict[str, str]]:
    billing = contract.billing
    rate = highest_rate(contract)
    by_hours = Decimal(str(billing.max_hours)) * rate
    if by_hours > billing.max_total:
        yield _warning(
            "billing.max_hours",
            f"{billing.max_hours} h at up to {money_text(rate)} {billing.currency} an hour would "
            f"cost {money_text(by_hours)}, but max_total is {money_text(billing.max_total)}: at "
            f"that price the host stops after {_span(affordable)}",
        )
    wind_down = wind_down_seconds(inputs)
    if affordable <= wind_down:
        yield _warning(
            "billing.max_total",
            f"the caps buy {_span(affordable)}, and the last checkpoint and the collection need "
            f"{_span(wind_down)}: nothing is left for training",
        )
    elif billing.hold_on_failure > affordable:
        yield _warning(
            "billing.hold_on_failure",
            f"holding a failed host for {duration_text(billing.hold_on_failure)} is longer than "
            f"the caps buy ({_span(affordable)}); it ends with them",
        )


def _losses(
    contract: Contract, inputs: Sequence[Resolved], affordable: int, per_step: float | None
) -> Iterator[dict[str, str]]:
    training = max(0, affordable - wind_down_seconds(inputs))
    every, steps = _saving(contract)
    if every is not None:
        if steps is not None and every >= steps:
            yield _warning(
                "project.config",
                f"the first checkpoint comes after step {every} of {steps}: results are lost by "
                "any stop before the end",
            )
        if per_step is not None and every * per_step > training:
            yield _warning(
                "billing.max_total",
                f"the first checkpoint comes after about {_span(int(every * per_step))} (step "
                f"{every}, by the last run's pace), later than the {_span(training)} of training "
                "that the caps buy",
            )
        elif per_step is not None and steps is not None and steps * per_step > training:
            yield _warning(
                "billing.max_total",
                f"all {steps} steps take about {_span(int(steps * per_step))}, the caps buy "
                f"{_span(training)} of training: the run ends at a checkpoint, to be resumed",
            )
    elif contract.project.entry_command is not None and not _keeps_checkpoints(contract):
        yield _warning(
            "project.entry_command",
            "no artifact names a checkpoint: what the command has not saved is lost by a stop at "
            f"the cap, {_span(training)} after the start at the latest",
        )
    if contract.billing.shutdown == "release":
        yield _warning(
            "billing.shutdown",
            "release deletes the host's disks after the verified download: what was not collected "
            "(caches, skipped files) is lost",
        )
    if contract.billing.shutdown == "keep":
        yield _warning("billing.shutdown", "keep leaves the meter running after the run")


def _pins(contract: Contract, inputs: Sequence[Resolved]) -> Iterator[dict[str, str]]:
    for index, resolved in enumerate(inputs):
        item = resolved.item
        if not item.pinned:
            named = f"'{item.revision}' is a name that can move" if item.revision else "not set"
            yield _warning(
                f"inputs.{index}.revision",
                f"revision of {item.name} {named}: the run is labelled not bitwise reproducible",
            )
        if resolved.files is None:
            yield _warning(
                f"inputs.{index}",
                f"{item.name} comes from {item.source}, whose files are not listed here: no "
                "approval can bind them yet",
            )
    needed = sum(resolved.bytes for resolved in inputs) / GIB
    if needed > contract.host.min_free_gib:
        yield _warning(
            "host.min_free_gib",
            f"the inputs alone take {needed:.1f} GiB, but only {contract.host.min_free_gib} GiB "
            "are asked for",
        )


def _rest(contract: Contract, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    if contract.run.verifier is None:
        yield _warning(
            "run.verifier",
            "no verifier: VERIFIED will rest on hashes and required artifacts, not on the results",
        )
    for index, name in enumerate(contract.secrets):
        if not environment.get(name):
            yield _warning(f"secrets.{index}", f"{name} is not set in this environment")


def highest_rate(contract: Contract) -> Decimal:
    """The most that an hour may cost, over all choices of card."""
    return max(contract.rate_cap(gpu) for gpu in contract.host.gpus)


def _saving(contract: Contract) -> tuple[int | None, int | None]:
    """(steps between checkpoints, steps in all) as the trainer's settings say; None: unknown."""
    project = contract.project
    if project.trainer is None or project.config is None:
        return None, None
    try:
        settings, _ = parse((project.directory / project.config).read_bytes())
    except (OSError, YamlFault):
        return None, None  # the trainer's own check says what is wrong with its settings
    values: Mapping[str, Any] = settings if isinstance(settings, dict) else {}
    return _count(values.get("save_steps")), _count(values.get("steps"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _keeps_checkpoints(contract: Contract) -> bool:
    named = (*contract.run.artifacts, *contract.run.collect.include)
    return any("checkpoint" in path.lower() or "ckpt" in path.lower() for path in named)


def _span(seconds: int) -> str:
    """A duration for people: `45 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
