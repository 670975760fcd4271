"""`--set KEY=VALUE`: dotted keys into the contract's data, before it is checked.

`billing.max_total`, `host.gpus.0.name`, `inputs.base.path` (a list's entries by index or name).
A value is read as YAML; where the key takes text it is taken as it stands, so that
`inputs.base.revision=1234567` stays a name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from experiment.contract.faults import fault, section_of
from experiment.contract.strict_yaml import YamlFault, parse_text
from experiment.errors import ContractInvalid


def apply(
    data: dict[str, Any], overrides: Mapping[str, str], model: type[BaseModel]
) -> tuple[dict[str, Any], list[ContractInvalid]]:
    """A copy of `data` with every override set, and the overrides that can't be."""
    changed = copy.deepcopy(data)
    faults: list[ContractInvalid] = []
    for key, text in overrides.items():
        try:
            value = _value(key, text, model)
            _set(changed, key, value)
        except ContractInvalid as error:
            faults.append(error)
    return changed, faults


def _value(key: str, text: str, model: type[BaseModel]) -> Any:
    if _takes_text(key.split("."), model):
        return None if text in ("null", "~", "") else text
    try:
        value, duplicates = parse_text(text)
    except YamlFault as error:
        raise fault("wrong value", key, expected="a YAML value", hint=str(error)) from None
    if duplicates:
        raise fault("wrong value", key, expected="each key once", hint=str(duplicates[0]))
    return value


def _takes_text(parts: list[str], model: type[BaseModel]) -> bool:
    """True when the key's type is text (or text or nothing)."""
    current: Any = model
    for part in parts:
        section = section_of(current) if not isinstance(current, type) else current
        if get_origin(current) is tuple and (section is None or part not in _fields(section)):
            current = get_args(current)[0]
            continue
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            # `run.env.NAME`: the values of a mapping.
            return bool(get_args(current)) and str in _kinds(get_args(current)[-1])
        current = _fields(section).get(part)
        if current is None:
            return False
    kinds = _kinds(current)
    return str in kinds and kinds <= {str, type(None)}


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _kinds(annotation: Any) -> set[Any]:
    origin = get_origin(annotation)
    if origin is None:
        return {annotation}
    if origin in (Literal, tuple):
        return {origin}
    if hasattr(annotation, "__metadata__"):
        return _kinds(get_args(annotation)[0])
    return {kind for item in get_args(annotation) for kind in _kinds(item)}


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    if not all(parts):
        raise fault("wrong key", key, expected="dotted keys like billing.max_total")
    place: Any = data
    for part in parts[:-1]:
        if isinstance(place, dict):
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
        else:
            place = place[_index(place, part, key)]
    if isinstance(place, dict):
        place[parts[-1]] = value
    else:
        place[_index(place, parts[-1], key)] = value


def _index(place: Any, part: str, key: str) -> int:
    """The index of a list's entry that is meant by a number or by its `name`."""
    if not isinstance(place, list):
        raise fault("wrong key", key, expected=f"a section or list before '{part}'")
    if part.isascii() and part.isdigit() and int(part) < len(place):
        return int(part)
    for index, entry in enumerate(place):
        if isinstance(entry, dict) and entry.get("name") == part:
            return index
    raise fault("wrong key", key, expected=f"an entry among {len(place)}", found=f"'{part}'")
