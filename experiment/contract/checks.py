"""Rules of a contract that span keys, and rules that look at the project's folder.

Each function takes sections of the right shape and yields faults; none raises. They run on every
section that is well formed, so that one bad key elsewhere hides nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pathspec import GitIgnoreSpec

from experiment.contract.faults import dotted, fault, missing_file
from experiment.contract.fields import escapes
from experiment.contract.model import Billing, Host, Input, Project, Run
from experiment.errors import CharterError, GuardRefused, NotFound
from remote import agent
from remote.agent.secret_patterns import scan_bytes

TRAINERS = Path(agent.__file__).parents[1] / "trainers"

AUTODL_DATA = ("/root/autodl-tmp", "/root/autodl-fs")
# On a host whose disks are unknown: folders that belong to the system on every Linux.
# fmt: off
SYSTEM_FOLDERS = frozenset({
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run",
    "sbin", "sys", "usr", "var",
})
OWN_VARIABLES = frozenset({
    "MODEL_PATH", "AGENTICQWEN_MODEL_PATH", "HF_HOME", "HF_HUB_CACHE", "PYTHONPATH",
    "HF_HUB_DISABLE_XET", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT",
    "TOKENIZERS_PARALLELISM",
})
# fmt: on


def secrets(data: object) -> Iterator[CharterError]:
    """Values shaped like keys or tokens, anywhere; named by key and kind, never shown."""
    seen: set[tuple[str, str]] = set()
    for loc, text in _leaves(data, ()):
        named = f"{loc[-1] if loc else ''}={text}"
        for _, kind in [*scan_bytes(text.encode()), *scan_bytes(named.encode())][:1]:
            if (dotted(loc), kind) not in seen:
                seen.add((dotted(loc), kind))
                yield GuardRefused(
                    "secret in the contract",
                    dotted(loc),
                    found=f"{kind} (not shown)",
                    hint="name it under `secrets` and set it in the environment; if it is real, "
                    "rotate it",
                )


def _leaves(value: object, loc: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], str]]:
    if isinstance(value, str):
        yield loc, value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*loc, key), str(key).encode("utf-8", "replace").decode()
            yield from _leaves(item, (*loc, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, (*loc, index))


def project(section: Project) -> Iterator[CharterError]:
    """What is started, and what has to be in the project's folder for it."""
    if (section.entry_command is None) == (section.trainer is None):
        found = "neither" if section.trainer is None else "both"
        yield fault("wrong value", "project", expected="entry_command or trainer", found=found)
    if section.trainer is not None:
        known = sorted(path.stem for path in TRAINERS.glob("*.py") if path.stem != "__init__")
        if section.trainer not in known:
            near = difflib.get_close_matches(section.trainer, known, 1)
            yield fault(
                "wrong value",
                "project.trainer",
                expected=f"one of {', '.join(known)}",
                found=f"'{section.trainer}'",
                hint=f"did you mean '{near[0]}'?" if near else "",
            )
        if section.config is None:
            yield fault("missing key", "project.config", hint="name the trainer's settings file")
    elif section.config is not None:
        yield fault(
            "wrong value",
            "project.config",
            expected="nothing without project.trainer",
            found=f"'{section.config}'",
            hint="put the file into the entry command",
        )
    for key in ("include", "exclude"):
        yield from patterns(getattr(section, key), f"project.{key}")
    yield from patterns(section.adapters.allow, "project.adapters.allow")
    yield from project_files(section)


def patterns(lines: Sequence[str], key: str) -> Iterator[CharterError]:
    """Gitignore patterns that can't be read."""
    for index, line in enumerate(lines):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            yield fault(
                "wrong value", f"{key}.{index}", expected="a gitignore pattern", found=f"'{line}'"
            )


def project_files(section: Project) -> Iterator[CharterError]:
    """The folder, its requirements file and the trainer's settings must be there."""
    folder = section.directory
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        yield NotFound(
            "missing project folder",
            "project.directory",
            expected=f"the folder {folder}",
            found=found,
            hint="correct project.directory",
        )
        return
    if folder == Path(folder.anchor):
        yield fault("wrong value", "project.directory", expected="a folder below /", found="'/'")
    if section.requirements is not None and not (folder / section.requirements).is_file():
        yield missing_file(
            "missing requirements file",
            "project.requirements",
            folder / section.requirements,
            hint="create it, or write project.requirements: null",
            exit_code=3,
        )
    if section.config is not None and not (folder / section.config).is_file():
        yield missing_file(
            "missing settings file",
            "project.config",
            folder / section.config,
            hint="create it, or correct project.config",
            exit_code=1,
        )


def inputs(items: Sequence[tuple[int, Input]]) -> Iterator[CharterError]:
    """Names once; a hub needs an id, a folder a path; a hub's path stays under the data root."""
    names: dict[str, int] = {}
    for index, item in items:
        key = f"inputs.{index}"
        if item.name in names:
            yield fault(
                "wrong value",
                f"{key}.name",
                expected="a name of its own",
                found=f"'{item.name}', as inputs.{names[item.name]}",
            )
        names.setdefault(item.name, index)
        if item.source != "folder" and item.id is None:
            yield fault("missing key", f"{key}.id", hint=f"write the id on {item.source}")
        if item.source == "folder" and item.path is None:
            yield fault("missing key", f"{key}.path", hint="name the folder on this machine")
        if item.source != "folder" and item.path is not None:
            yield from _under_root(item.path, f"{key}.path", "the data root")


def host(section: Host) -> Iterator[CharterError]:
    """Environment and data root."""
    environment = section.environment
    if environment.kind == "conda" and environment.name is None:
        yield fault("missing key", "host.environment.name", hint="name the conda environment")
    if environment.kind != "conda" and environment.name is not None:
        yield fault(
            "wrong value",
            "host.environment.name",
            expected=f"nothing for kind {environment.kind}",
            found=f"'{environment.name}'",
        )
    if section.data_root is not None:
        yield from data_root(section.data_root, section.provider)


def data_root(path: str, provider: str) -> Iterator[CharterError]:
    """Requirement 6: durable data never lies on a disk that goes with the system."""
    key = "host.data_root"
    clean = PurePosixPath(path)
    if not path.startswith("/") or ".." in clean.parts or path.startswith("//"):
        yield fault("wrong value", key, expected="an absolute path without '..'", found=f"'{path}'")
        return
    parts = clean.parts[1:]
    on_autodl = any(clean.is_relative_to(root) for root in AUTODL_DATA)
    shallow = len(parts) < (3 if parts[:1] == ("home",) else 2 if parts[:1] == ("tmp",) else 1)
    system = shallow or (parts[0] in SYSTEM_FOLDERS and not on_autodl)
    if system or (provider == "autodl" and not on_autodl):
        yield GuardRefused(
            "data root on the system disk",
            key,
            expected="a folder on a data disk, like /root/autodl-tmp",
            found=f"'{path}'",
            hint="correct host.data_root",
        )
    elif provider == "local":
        yield fault(
            "wrong value",
            key,
            expected="null (provider local keeps its data under CHARTER_HOME/hosts)",
            found=f"'{path}'",
        )


def run(section: Run, secret_names: Sequence[str]) -> Iterator[CharterError]:
    """Paths stay inside the run's folder; variables are not those that Charter sets."""
    for index, artifact in enumerate(section.artifacts):
        yield from _under_root(artifact, f"run.artifacts.{index}", "the run's folder")
    for key in ("include", "exclude"):
        lines = getattr(section.collect, key)
        yield from patterns(lines, f"run.collect.{key}")
        for index, line in enumerate(lines):
            inside = line.lstrip("!").lstrip("/") or "."
            yield from _under_root(inside, f"run.collect.{key}.{index}", "the run's folder")
    for name in section.env:
        yield from _variable(name, f"run.env.{name}")
        if name in secret_names:
            yield fault(
                "wrong value", f"run.env.{name}", expected="a name that is not under secrets too"
            )
    for index, name in enumerate(secret_names):
        yield from _variable(name, f"secrets.{index}")


def _under_root(path: str, key: str, root: str) -> Iterator[CharterError]:
    if path.startswith(("/", "~")) or "\\" in path or escapes(path):
        yield GuardRefused(
            f"path outside {root}",
            key,
            expected=f"a path relative to {root}",
            found=f"'{path}'",
            hint=f"correct {key}",
        )


def _variable(name: str, key: str) -> Iterator[CharterError]:
    if name in OWN_VARIABLES or name.startswith(("CHARTER_", "AUTODL_")):
        yield fault("wrong value", key, expected="a variable that Charter does not set itself")


def billing(section: Billing, machine: Host, gpus_given: bool) -> Iterator[CharterError]:
    """Every choice of card has a price bound; preauthorised spending names its cards."""
    if section.max_price_per_hour is None:
        for index, gpu in enumerate(machine.gpus):
            if gpu.max_price_per_hour is None:
                yield fault(
                    "missing key",
                    f"host.gpus.{index}.max_price_per_hour",
                    hint="bound the hourly price here or in billing.max_price_per_hour",
                )
    if section.approval == "preauthorised" and not gpus_given:
        yield fault(
            "missing key", "host.gpus", hint="billing.approval: preauthorised needs the cards named"
        )


def all_checks(sections: dict[str, Any]) -> Iterator[CharterError]:
    """Every rule whose sections are well formed (`sections[name]` absent otherwise)."""
    if "project" in sections:
        yield from project(sections["project"])
    yield from inputs(sections["inputs"])
    if "host" in sections:
        yield from host(sections["host"])
    if "run" in sections:
        yield from run(sections["run"], sections.get("secrets", ()))
    if "billing" in sections and "host" in sections:
        yield from billing(
            sections["billing"], sections["host"], "gpus" in sections["host"].model_fields_set
        )


def input_folder(item: Input, base: Path) -> Path:
    """The folder on this machine behind an input of source folder, absolute."""
    return Path(os.path.abspath(base / Path(item.path or ".").expanduser()))
