"""A proposal for a project's contract, every value with the reason for it.

Nothing is decided in silence (requirement 232): `charter init` shows the guesses and writes the
file only after a yes. Reads the project as the bundle would see it; runs none of it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiment.bundle.select import Member, Selection, select
from experiment.contract.slug import slugify
from experiment.contract.sources import Found, read_sources
from experiment.errors import ContractInvalid

ENTRY_SCRIPTS = ("train.sh", "run.sh", "scripts/train.sh", "scripts/run.sh")
ENTRY_MODULES = (
    "train.py",
    "main.py",
    "run.py",
    "src/train.py",
    "src/main.py",
    "scripts/train.py",
    "training/train.py",
)
REQUIREMENTS = ("requirements.txt", "requirements/train.txt", "requirements/base.txt")
DATA_SUFFIXES = (".jsonl", ".parquet", ".csv", ".arrow", ".tsv")
# Data files above this are better an input (hashed, kept on the host) than part of every bundle.
LARGE_DATA = 100 * 1024 * 1024
MAX_ARTIFACTS = 6
DEFAULT_ARTIFACT = "summary.json"
GRPO_KEYS = re.compile(rb"^(?:judge|generations|dataset|completion_length)\s*:", re.MULTILINE)


@dataclass
class Proposal:
    """A contract as plain data, and `[{key, value, why}]` for everything that was guessed."""

    contract: dict[str, Any]
    guesses: list[dict[str, Any]] = field(default_factory=list)

    def guess(self, key: str, value: Any, why: str) -> Any:
        """Record the reason for a value, and give the value back."""
        self.guesses.append({"key": key, "value": value, "why": why})
        return value


def inspect_project(directory: Path) -> Proposal:
    """Propose a contract for the project in a folder.

    Raises:
        NotFound: no such folder (exit 3).
        ContractInvalid: there is nothing in it.
        GuardRefused: what could not be bundled either (links leading outside and the like).
    """
    root = Path(os.path.abspath(directory))
    selection = select(root)
    paths = [member.path for member in selection.members]
    found = read_sources(root, paths)
    proposal = Proposal({"schema": 1})
    contract = proposal.contract
    contract["job"] = proposal.guess("job", _job(root), "the folder's name")
    contract["project"] = _project(root, paths, found, proposal)
    contract["inputs"] = [*_hub_inputs(found, proposal), *_folders(root, selection, proposal)]
    contract["host"] = _host(proposal)
    contract["run"] = _run(paths, found, contract["project"], proposal)
    contract["billing"] = _billing(proposal)
    contract["secrets"] = list(found.secrets)
    if found.secrets:
        places = ", ".join(found.secrets.values())
        proposal.guess("secrets", list(found.secrets), f"read from the environment at {places}")
    return proposal


def _job(root: Path) -> str:
    try:
        return slugify(root.name)
    except ValueError:
        return "experiment"


# ── project ──────────────────────────────────────────────────────────────────────────────────


def _project(root: Path, paths: list[str], found: Found, proposal: Proposal) -> dict[str, Any]:
    project: dict[str, Any] = {"directory": "."}
    config = _grpo_config(root, paths)
    if config is not None:
        why = f"{config} has the trainer's keys, and judge.py is there"
        project["trainer"] = proposal.guess("project.trainer", "grpo", why)
        project["config"] = proposal.guess("project.config", config, why)
    else:
        command, why = _entry(paths, found)
        project["entry_command"] = proposal.guess("project.entry_command", command, why)
    requirements, why = _requirements(paths)
    project["requirements"] = proposal.guess("project.requirements", requirements, why)
    return project


def _grpo_config(root: Path, paths: list[str]) -> str | None:
    """A settings file of our GRPO trainer, when a judge lies beside it."""
    for path in paths:
        if not path.endswith((".yaml", ".yml")) or (root / path).stat().st_size > 65_536:
            continue
        judge = f"{os.path.dirname(path)}/judge.py".lstrip("/")
        if judge in paths and len(GRPO_KEYS.findall((root / path).read_bytes())) >= 2:
            return path
    return None


def _entry(paths: list[str], found: Found) -> tuple[str, str]:
    for path in ENTRY_SCRIPTS:
        if path in paths:
            return f"bash {path}", f"{path} is there"
    for path in ENTRY_MODULES:
        if path in paths:
            return f"python {path}", f"{path} is there"
    outside_tests = [path for path in found.starts if not _is_test(path)]
    trainers = [path for path in outside_tests if "train" in path.lower()]
    for path in [*trainers, *outside_tests]:
        return f"python {_quoted(path)}", f"it starts as a program: {found.starts[path]}"
    return "python train.py", "nothing that starts a training was found: write the command"


def _is_test(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.startswith(("test_", "conftest", "verify", "check", "setup")) or "tests/" in path


def _quoted(path: str) -> str:
    if re.fullmatch(r"[\w./-]+", path):
        return path
    return "'" + path.replace("'", "'\\''") + "'"


def _requirements(paths: list[str]) -> tuple[str | None, str]:
    for path in REQUIREMENTS:
        if path in paths:
            return path, f"{path} is there"
    other = [path for path in paths if re.fullmatch(r"requirements[\w.-]*\.txt", path)]
    if other:
        return other[0], f"{other[0]} is there"
    return None, "no requirements file: nothing is installed beside the host's own packages"


# ── inputs ───────────────────────────────────────────────────────────────────────────────────


def _hub_inputs(found: Found, proposal: Proposal) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = []
    for kind, ids in (("model", found.models), ("dataset", found.datasets)):
        for identity, where in ids.items():
            # Public Qwen models are on ModelScope, which is nearer to mainland hosts.
            qwen = kind == "model" and identity.lower().startswith("qwen/")
            source = "modelscope" if qwen else "huggingface"
            item = {
                "name": slugify(identity.rsplit("/", 1)[-1]),
                "kind": kind,
                "source": source,
                "id": identity,
                "revision": None,
            }
            why = f"loaded at {where}; no revision is pinned: write one"
            inputs.append(proposal.guess(f"inputs.{len(inputs)}", item, why))
    return _named_apart(inputs)


def _folders(root: Path, selection: Selection, proposal: Proposal) -> list[dict[str, Any]]:
    """Model folders of the project, which stay out of the bundle, and large data files."""
    inputs: list[dict[str, Any]] = []
    begun = len([guess for guess in proposal.guesses if guess["key"].startswith("inputs.")])
    for folder in _model_folders(root):
        name = slugify(folder.replace("/", "-"))
        item = {"name": name, "kind": "model", "source": "folder", "path": folder}
        why = f"{folder}/config.json beside weights, which a bundle leaves out"
        inputs.append(proposal.guess(f"inputs.{begun + len(inputs)}", item, why))
    data = [m for m in selection.members if m.link is None and m.path.endswith(DATA_SUFFIXES)]
    small = [member.path for member in data if member.size <= LARGE_DATA]
    if small:
        shown = small[:10]
        proposal.guess("project.include", shown, "dataset files found; they travel in the bundle")
    for member in data:
        if member.size > LARGE_DATA:
            inputs += _large_data(member, begun + len(inputs), proposal)
    return inputs


def _large_data(member: Member, index: int, proposal: Proposal) -> list[dict[str, Any]]:
    folder = os.path.dirname(member.path)
    size = member.size // (1024 * 1024)
    if not folder:
        proposal.guess("project.exclude", member.path, f"{size} MiB in every bundle: move it")
        return []
    item = {
        "name": slugify(folder.replace("/", "-")),
        "kind": "dataset",
        "source": "folder",
        "path": folder,
    }
    return [proposal.guess(f"inputs.{index}", item, f"{member.path} has {size} MiB")]


def _model_folders(root: Path) -> list[str]:
    """Folders down to the third level that hold a model; ignored ones too: that is usual."""
    found = []
    for config in sorted({*root.glob("*/config.json"), *root.glob("*/*/config.json")}):
        folder = config.parent
        hidden = any(part.startswith((".", "venv")) for part in folder.relative_to(root).parts)
        weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
        if weights and not hidden and not folder.is_symlink():
            found.append(folder.relative_to(root).as_posix())
    return found


def _named_apart(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    taken: set[str] = set()
    for item in inputs:
        name, number = item["name"], 2
        while item["name"] in taken:
            item["name"] = f"{name}-{number}"
            number += 1
        taken.add(item["name"])
    return inputs


# ── host, run, billing ───────────────────────────────────────────────────────────────────────


def _host(proposal: Proposal) -> dict[str, Any]:
    provider = proposal.guess("host.provider", "local", "to try it here; then attach or autodl")
    card = {"name": "any", "count": 1}
    cards = proposal.guess("host.gpus", [card], "which cards are needed can't be seen: name them")
    return {"provider": provider, "gpus": cards, "min_vram_gib": 0, "min_free_gib": 2}


def _run(
    paths: list[str], found: Found, project: dict[str, Any], proposal: Proposal
) -> dict[str, Any]:
    run: dict[str, Any] = {}
    if project.get("trainer"):
        names = ["summary.json", "metrics.jsonl"]
        why = "what the trainer writes when it finishes"
    else:
        names = [name for name in found.outputs if not name.startswith("test")][:MAX_ARTIFACTS]
        places = ", ".join(found.outputs[name] for name in names)
        why = f"written at {places}; must lie under $AUTODL_RUN_ROOT"
    if not names:
        names = [DEFAULT_ARTIFACT]
        why = "no output was found: name what a finished run leaves under $AUTODL_RUN_ROOT"
    run["artifacts"] = proposal.guess("run.artifacts", names, why)
    verifiers = [p for p in paths if re.fullmatch(r"(?:scripts/)?verify[\w-]*\.(?:py|sh)", p)]
    if verifiers:
        command = ("bash " if verifiers[0].endswith(".sh") else "python ") + verifiers[0]
        run["verifier"] = proposal.guess("run.verifier", command, f"{verifiers[0]} is there")
    tests = [p for p in paths if re.fullmatch(r"(?:tests?/(?:.*/)?)?test_[\w-]+\.py", p)]
    if tests:
        command = "python -m pytest -q"
        run["test_command"] = proposal.guess("run.test_command", command, f"{tests[0]} is there")
    return run


def _billing(proposal: Proposal) -> dict[str, Any]:
    why = "a low bound to begin with: write your own"
    return {
        "approval": proposal.guess("billing.approval", "ask", "a person says yes before any rent"),
        "max_price_per_hour": proposal.guess("billing.max_price_per_hour", 5, why),
        "max_total": proposal.guess("billing.max_total", 5, why),
        "max_hours": proposal.guess("billing.max_hours", 1, why),
        "currency": proposal.guess("billing.currency", "CNY", "as AutoDL bills"),
        "shutdown": "stop",
    }


def write_proposal(text: str, directory: Path) -> Path:
    """Write `DIR/contract.yaml`; never over one.

    Raises:
        ContractInvalid: there is one already.
        OSError: it can't be written.
    """
    path = Path(os.path.abspath(directory)) / "contract.yaml"
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ContractInvalid(
            "contract exists already", str(path), hint="edit it, or move it away"
        ) from None
    return path
