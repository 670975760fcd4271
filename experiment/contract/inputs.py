"""Inputs resolved: which files, of which bytes, so that an approval binds exactly them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.contract.model import Contract, Input
from experiment.errors import CharterError, GuardRefused, NotFound
from remote.agent.errors import AgentError
from remote.agent.files import sha256_file
from remote.agent.manifest import tree_sha256, walk

# What other tools leave beside the files of a model or dataset.
LEFT_OUT = frozenset(
    {".git", ".cache", ".DS_Store", "__pycache__", ".autodl_model_complete.json", ".mv", ".msc"}
)


@dataclass(frozen=True)
class Resolved:
    """One input as it is now.

    Attributes:
        item: the contract's entry.
        folder: where it lies on this machine, absolute; None for a hub.
        files: `[{path, bytes, sha256}]` in order of path; None while a hub has not been asked.
        tree_sha256: the digest of `files`; None likewise.
    """

    item: Input
    folder: Path | None
    files: tuple[dict[str, Any], ...] | None
    tree_sha256: str | None

    @property
    def bytes(self) -> int:
        return sum(int(file["bytes"]) for file in self.files or ())

    def as_json(self) -> dict[str, Any]:
        """Plain values; `folder` is of this machine and no part of any digest."""
        return {
            "name": self.item.name,
            "kind": self.item.kind,
            "source": self.item.source,
            "id": self.item.id or self.item.name,
            "revision": self.item.revision,
            "pinned": self.item.pinned,
            "quantization": self.item.quantization,
            "path": self.item.path,
            "folder": str(self.folder) if self.folder else None,
            "bytes": self.bytes,
            "files": None if self.files is None else [dict(file) for file in self.files],
            "tree_sha256": self.tree_sha256,
        }


def resolve_inputs(contract: Contract) -> tuple[Resolved, ...]:
    """Every input of the contract; folders are read and hashed whole.

    Inputs from hubs come back without files: their lists are not read here yet.

    Raises:
        NotFound: a folder that is not there (exit 1).
        GuardRefused: a folder without files, or with what can't be sent; all faults at once.
    """
    resolved: list[Resolved] = []
    faults: list[CharterError] = []
    for index, item in enumerate(contract.inputs):
        if item.source != "folder":
            resolved.append(Resolved(item, None, None, None))
            continue
        try:
            resolved.append(resolve_folder(item, contract.base, f"inputs.{index}.path"))
        except CharterError as error:
            faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise type(faults[0])(
            "inputs refused",
            ", ".join(fault.thing for fault in faults),
            details=[fault.line() for fault in faults],
            exit_code=faults[0].exit_code,
        )
    return tuple(resolved)


def resolve_folder(item: Input, base: Path, key: str) -> Resolved:
    """The files of one folder. A link to a file counts as that file's content (hub caches are
    made of such links); a link to a folder is refused.

    Raises:
        NotFound, GuardRefused: as `resolve_inputs`.
    """
    folder = Path(os.path.abspath(base / Path(item.path or ".").expanduser()))
    if not folder.is_dir():
        raise NotFound(
            "missing input folder",
            key,
            expected=f"the folder {folder}",
            found="a file" if folder.exists() else "nothing",
            hint=f"create it, or correct {key}",
            exit_code=1,
        )
    try:
        names = walk(folder, lambda path, _is_folder: path.rsplit("/", 1)[-1] in LEFT_OUT)
        files = tuple(_file(folder, name) for name in names)
    except (OSError, AgentError, UnicodeError) as error:
        raise GuardRefused("unreadable input", key, found=str(error), hint="repair it") from error
    if not files:
        raise GuardRefused("empty input folder", key, expected="files", found=str(folder))
    return Resolved(item, folder, files, tree_sha256(files))


def _file(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    name.encode("utf-8")  # surrogates raise: such a name can't be written into a manifest
    if not path.is_file():
        raise OSError(f"neither a file nor a link to one: {name!r}")
    return {"path": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
