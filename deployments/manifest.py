"""prefect.yaml, the single source of every deployment's name, parameters, tags and limits.

Each entry's `entrypoint` is a module path (`flows.run_experiment.run_experiment`): a file path
would put `flows/` first on sys.path. Each entry carries the tag of the runner that serves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiment.errors import ContractInvalid, NotFound

MANIFEST = Path(__file__).resolve().parent.parent / "prefect.yaml"
RUNNERS = ("experiments", "reapers")

_MODULE_PATH = re.compile(r"[a-z_][a-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


@dataclass(frozen=True)
class Entry:
    """One deployment as prefect.yaml states it.

    Attributes:
        name: the deployment's name, the same as the flow's file and function.
        entrypoint: module path of the flow function.
        runner: which of `RUNNERS` serves it.
        options: the other keys, in Prefect's own words.
    """

    name: str
    entrypoint: str
    runner: str
    options: Mapping[str, Any]


def read_manifest(path: Path = MANIFEST) -> tuple[Entry, ...]:
    """Every deployment of a prefect.yaml, in its order.

    Raises:
        NotFound: no such file.
        ContractInvalid: no deployments, an entrypoint that is no module path, or an entry that no
            runner or more than one would serve; all faults at once, in `details`.
    """
    if not path.is_file():
        raise NotFound("no deployments file", str(path), hint="install Charter from a whole clone")
    document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    entries = document.get("deployments") or []
    faults = [fault for entry in entries for fault in _faults(entry)]
    if not entries:
        faults = ["deployments: expected at least one entry, found none"]
    if faults:
        raise ContractInvalid("deployments file refused", str(path), details=faults)
    return tuple(_entry(entry) for entry in entries)


def fingerprint(path: Path = MANIFEST) -> str:
    """Changes whenever the file does, so that a runner with old deployments is replaced."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _entry(entry: Mapping[str, Any]) -> Entry:
    options = {key: entry[key] for key in entry if key not in ("name", "entrypoint")}
    (runner,) = set(RUNNERS) & set(entry["tags"])
    return Entry(str(entry["name"]), str(entry["entrypoint"]), runner, options)


def _faults(entry: Mapping[str, Any]) -> list[str]:
    name = entry.get("name") or "an entry without a name"
    found = []
    entrypoint = str(entry.get("entrypoint", ""))
    if not _MODULE_PATH.fullmatch(entrypoint):
        found.append(
            f"{name}: entrypoint: expected a module path such as flows.name.name, "
            f"found {entrypoint!r}"
        )
    serving = sorted(set(RUNNERS) & set(entry.get("tags") or ()))
    if len(serving) != 1:
        found.append(f"{name}: tags: expected exactly one of {RUNNERS}, found {serving}")
    return found
