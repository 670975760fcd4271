"""The well-formed parts of a contract that as a whole is not: so that one bad key hides nothing.

A malformed key is taken out of its section, the section's other keys are checked by the rules,
and rules that rest on a key taken out are not reported: they would blame the wrong thing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from experiment.contract.faults import dotted, nearest_key
from experiment.contract.model import Billing, Host, Input, Project, Run
from experiment.errors import CharterError

SECTIONS: dict[str, type[BaseModel]] = {
    "project": Project,
    "host": Host,
    "run": Run,
    "billing": Billing,
}
# Stand-ins for required keys that are missing, which the shape's faults name already.
STAND_INS: dict[str, dict[str, Any]] = {
    "run": {"artifacts": ["stand-in"]},
    "billing": {"max_total": 0, "max_hours": 1},
}
# A rule's fault at the first key says nothing when one of the others was taken out.
RESTS_ON = {
    "project": ("project.entry_command", "project.trainer"),
    "project.config": ("project.trainer", "project.directory"),
    "project.requirements": ("project.directory",),
    "host.gpus": ("billing.max_price_per_hour",),
    "host.environment": ("host.environment",),
}


def sections_of(data: dict[str, Any], base: Path) -> tuple[dict[str, Any], set[str]]:
    """The sections to check, and the dotted keys that were taken out of them."""
    context = {"base": os.path.abspath(base)}
    sections: dict[str, Any] = {"inputs": []}
    taken: set[str] = set()
    for name, model in SECTIONS.items():
        raw = data.get(name, {})
        if isinstance(raw, dict):
            sections[name] = _section(name, model, raw, context, taken)
    items = data.get("inputs")
    for index, item in enumerate(items if isinstance(items, list) else []):
        try:
            sections["inputs"].append((index, Input.model_validate(item)))
        except ValidationError:
            continue  # its faults are already among those of the whole contract
    names = data.get("secrets")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        sections["secrets"] = names
    return {name: part for name, part in sections.items() if part is not None}, taken


def meaningful(faults: Iterable[CharterError], taken: set[str]) -> Iterator[CharterError]:
    """The faults that do not rest on a key that was taken out."""
    for item in faults:
        under = any(item.thing == key or item.thing.startswith(f"{key}.") for key in taken)
        rests = any(
            (item.thing == key or item.thing.startswith(f"{key}.")) and not taken.isdisjoint(others)
            for key, others in RESTS_ON.items()
        )
        if not under and not rests:
            yield item


def _section(
    name: str, model: type[BaseModel], raw: dict[str, Any], context: dict[str, str], taken: set[str]
) -> BaseModel | None:
    try:
        return model.model_validate(raw, context=context)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    kept = dict(raw)
    for problem in problems:
        key = problem["loc"][0]
        kept.pop(str(key), None)
        taken.add(dotted((name, key)))
        if problem["type"] == "extra_forbidden":
            near = nearest_key(model, problem["loc"])
            taken.update({dotted((name, near))} if near else set())
    try:
        return model.model_validate({**STAND_INS.get(name, {}), **kept}, context=context)
    except ValidationError:
        return None  # nothing of it can be checked; its faults are reported already
