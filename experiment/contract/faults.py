"""From what is wrong with a contract to one line per fault, all at once.

A fault is a `CharterError` that has not been raised yet: it knows its key, what was expected,
what was found, and its exit code. `refuse` makes the one error to raise out of several.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from experiment.errors import CharterError, ContractInvalid, GuardRefused, NotFound
from remote.agent.secret_patterns import scan_bytes

# What a person has to write for a section or key that has no safe default.
MISSING_HINTS = {
    "schema": "write schema: 1",
    "job": "name the experiment",
    "project": "write project.entry_command, or project.trainer and project.config",
    "run": "write run.artifacts with at least one file that a finished run leaves",
    "run.artifacts": "name at least one file that a finished run leaves",
    "billing": "write billing.max_total and billing.max_hours",
    "billing.max_total": "write the most money that the job may cost",
    "billing.max_hours": "write the most hours that the job may take",
}


def fault(
    what: str, key: str, *, expected: str = "", found: str = "", hint: str = ""
) -> ContractInvalid:
    """One fault of the contract at `key` (dotted, as `--set` takes it)."""
    return ContractInvalid(what, key, expected=expected, found=found, hint=hint)


def refuse(faults: Sequence[CharterError], source: str) -> CharterError:
    """One error out of several faults; the gravest decides class and exit code.

    A guard (a secret, an escaping path) comes before a wrong contract, and that before a missing
    file, so that nothing is answered with "not found" which could never have been accepted.
    """
    if len(faults) == 1:
        return faults[0]
    gravest = next(
        (item for kind in (GuardRefused, ContractInvalid) for item in faults if type(item) is kind),
        faults[0],
    )
    keys = ", ".join(dict.fromkeys(item.thing for item in faults if item.thing))
    return type(gravest)(
        "contract refused",
        source,
        found=f"{len(faults)} faults",
        hint=f"correct {keys}",
        details=[item.line() for item in faults],
        exit_code=gravest.exit_code,
    )


def shape_faults(error: ValidationError, model: type[BaseModel]) -> Iterator[ContractInvalid]:
    """One fault for each of pydantic's, in the order of the contract's keys."""
    problems = error.errors(include_url=False)
    mistyped: set[tuple[Any, ...]] = set()
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            near = nearest_key(model, problem["loc"])
            if near:
                mistyped.add((*problem["loc"][:-1], near))
    for problem in problems:
        # A mistyped key is one fault, not "unknown" and "missing".
        if problem["type"] == "missing" and problem["loc"] in mistyped:
            continue
        # pydantic counts malformed entries out, and would call a list of them too short.
        if problem["type"] == "too_short" and problem.get("input"):
            continue
        yield _one(problem, model)


def describe(value: object) -> str:
    """The value as a person wrote it; never a secret, never a page of text."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 70 digits"
    text = json.dumps(value, ensure_ascii=True) if isinstance(value, str) else str(value)
    if scan_bytes(str(value).encode("utf-8", "replace")):
        return "a value shaped like a secret (not shown)"
    if isinstance(value, str):
        text = "'" + text[1:-1].replace('\\"', '"') + "'"
    return text if len(text) <= 60 else f"{text[:57]}…"


def dotted(loc: Iterable[object]) -> str:
    """`billing.max_total`, `host.gpus.0.name`: the form that `--set` takes."""
    parts = [part for part in loc if part != "[key]"]
    return ".".join(_key_text(part) for part in parts)


def _key_text(part: object) -> str:
    text = str(part)
    if scan_bytes(text.encode("utf-8", "replace")):
        return "(a key shaped like a secret)"
    text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 60 else f"{text[:57]}…"


def _one(problem: Any, model: type[BaseModel]) -> ContractInvalid:
    kind, key, value = problem["type"], dotted(problem["loc"]), problem.get("input")
    context = problem.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_key(problem["loc"], key, model)
    if kind == "missing":
        return fault("missing key", key, hint=MISSING_HINTS.get(key, "add it"))
    if kind == "wanted":
        # A list of secret names is where people paste the secret itself.
        found = describe(value) if not key.startswith("secrets.") else "something else (not shown)"
        return fault(
            "wrong value", key, expected=context["expected"], found=found, hint=context["hint"]
        )
    if kind == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        near = difflib.get_close_matches(str(value), words, 1)
        hint = f"did you mean '{near[0]}'?" if near else ""
        return fault(
            "wrong value", key, expected=" or ".join(words), found=describe(value), hint=hint
        )
    if kind == "too_short":
        return fault("wrong value", key, expected="at least one entry", found="none")
    expected = {
        "tuple_type": "a list",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "dict_type": "a mapping",
        "mapping_type": "a mapping",
    }.get(kind, problem["msg"])
    return fault("wrong value", key, expected=expected, found=describe(value))


def _unknown_key(loc: tuple[Any, ...], key: str, model: type[BaseModel]) -> ContractInvalid:
    keys = _keys(_section_at(model, loc[:-1]))
    wrong = str(loc[-1])
    near = nearest_key(model, loc)
    if near:
        return fault("unknown key", key, hint=f"did you mean '{dotted((*loc[:-1], near))}'?")
    elsewhere = _find_key(model, wrong)
    if elsewhere:
        return fault("unknown key", key, hint=f"it belongs at '{elsewhere}'")
    return fault("unknown key", key, expected=f"one of {', '.join(keys)}", hint="remove it")


def _nearest(word: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower().replace("-", "_"), keys, 1, 0.6)
    return near[0] if near else ""


def _keys(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def nearest_key(model: type[BaseModel], loc: Sequence[Any]) -> str:
    """The key that a misspelt one at `loc` probably means, or nothing."""
    return _nearest(str(loc[-1]), _keys(_section_at(model, loc[:-1])))


def _section_at(model: type[BaseModel], loc: Sequence[Any]) -> type[BaseModel] | None:
    """The section that a location lies in; list indices are passed over."""
    current: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int) or current is None:
            continue
        current = next(
            (
                section_of(field.annotation)
                for name, field in current.model_fields.items()
                if part in (name, field.alias)
            ),
            None,
        )
    return current


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section behind `X`, `tuple[X, ...]`, `Annotated[X, …]` or `X | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is None:
        return None
    found = (section_of(item) for item in get_args(annotation))
    return next((item for item in found if item is not None), None)


def _find_key(model: type[BaseModel], wrong: str) -> str:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or section is model:
            continue
        here = field.alias or name
        if wrong in _keys(section):
            return f"{here}.{wrong}"
        deeper = _find_key(section, wrong)
        if deeper:
            return f"{here}.{deeper}"
    return ""


def missing_file(what: str, key: str, path: Path | str, *, hint: str, exit_code: int) -> NotFound:
    """A file or folder that the contract names and that is not there."""
    return NotFound(what, key, expected=str(path), found="nothing", hint=hint, exit_code=exit_code)
