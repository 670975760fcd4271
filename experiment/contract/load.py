"""From a YAML file and overrides to a frozen contract, or to every fault at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.contract import checks
from experiment.contract.faults import fault, refuse
from experiment.contract.model import Contract, validate
from experiment.contract.overrides import apply
from experiment.contract.partial import meaningful, sections_of
from experiment.contract.strict_yaml import MAX_BYTES, YamlFault, parse
from experiment.errors import CharterError, ContractInvalid, NotFound


def load_contract(path: str | Path, overrides: Mapping[str, str] | None = None) -> Contract:
    """The contract in a file. Reads only; writes nothing.

    Args:
        path: the YAML file; relative paths in it are relative to its folder.
        overrides: `--set` pairs, dotted key to text.

    Raises:
        NotFound: no such file (exit 1), project folder or requirements file (3), settings (1).
        ContractInvalid: anything wrong in it; `details` has a line for each fault when several.
        GuardRefused: a secret, or a path outside the data root, in it.
    """
    file = Path(os.path.abspath(path))
    data, faults = read_yaml(file)
    return check_contract(data, file.parent, overrides or {}, str(path), faults)


def check_contract(
    data: dict[str, Any],
    base: Path,
    overrides: Mapping[str, str] | None = None,
    source: str = "the contract",
    faults: list[CharterError] | None = None,
) -> Contract:
    """As `load_contract`, for data that is not in a file (the flags of `charter bundle`)."""
    changed, refused = apply(data, overrides or {}, Contract)
    shape, contract = validate(changed, base)
    sections, taken = sections_of(changed, base)
    found: list[CharterError] = [
        *(faults or []),
        *checks.secrets(changed),
        *refused,
        *shape,
        *meaningful(checks.all_checks(sections), taken),
    ]
    if found or contract is None:
        raise refuse(found, source)
    return contract


def read_yaml(file: Path) -> tuple[dict[str, Any], list[CharterError]]:
    """The mapping in a contract's file, and the faults that still allow checking it.

    Raises:
        NotFound: no such file (exit 1).
        ContractInvalid: not a readable YAML mapping.
    """
    try:
        with open(file, "rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise NotFound(
            "missing contract",
            str(file),
            expected="a file",
            found="a folder" if isinstance(error, IsADirectoryError) else "nothing",
            hint="write one with `charter init DIR`",
            exit_code=1,
        ) from None
    except OSError as error:
        raise ContractInvalid(
            "unreadable contract", str(file), found=error.strerror or "", hint="check its rights"
        ) from None
    try:
        value, duplicates = parse(data)
    except YamlFault as error:
        raise ContractInvalid("not a contract", _at(file, error), found=str(error)) from None
    if not isinstance(value, dict):
        raise ContractInvalid(
            "not a contract", str(file), expected="a mapping of keys", hint="see `charter init`"
        )
    return value, [
        fault(str(item), _at(file, item), hint="keep one of them") for item in duplicates
    ]


def _at(file: Path, error: YamlFault) -> str:
    return f"{file}:{error.line}" if error.line else str(file)
