"""What a project's Python sources say about its inputs, outputs and secrets.

Read as syntax trees, never run. Only literal values count: a name computed at run time is not
guessed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

LARGEST_SOURCE = 2_000_000
MODEL_LOADERS = frozenset({"from_pretrained", "snapshot_download", "LLM", "pipeline"})
DATASET_LOADERS = frozenset({"load_dataset", "MsDataset.load"})
OUTPUT_KEYWORDS = frozenset({"output_dir", "save_dir", "default_root_dir"})
SAVERS = frozenset(
    {"save_pretrained", "save_model", "to_csv", "to_json", "to_parquet", "savefig", "save"}
)
WRITERS = frozenset({"write_text", "write_bytes"})
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]*(?:TOKEN|API_KEY|SECRET|ACCESS_KEY)\Z")
RESULT_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)*\Z")


@dataclass
class Found:
    """Literals by what they are, each with `FILE:LINE` of its first appearance."""

    models: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def read_sources(root: Path, paths: list[str]) -> Found:
    """Look through the project's Python files (paths relative to its root)."""
    found = Found()
    for path in paths:
        file = root / path
        if not path.endswith(".py") or file.is_symlink() or file.stat().st_size > LARGEST_SOURCE:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found.unreadable.append(path)
            continue
        for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
            _look(node, path, found)
    return found


def _look(node: ast.AST, path: str, found: Found) -> None:
    if isinstance(node, ast.Call):
        where = f"{path}:{node.lineno}"
        _call(node, where, found)
        for keyword in node.keywords:
            if keyword.arg in OUTPUT_KEYWORDS:
                _note(found.outputs, _output(keyword.value), where)
    elif isinstance(node, ast.Subscript) and _dotted(node.value).endswith("environ"):
        _secret(_text(node.slice), f"{path}:{node.lineno}", found)
    elif isinstance(node, ast.If) and _is_main(node.test):
        found.starts.setdefault(path, f"{path}:{node.lineno}")


def _call(node: ast.Call, where: str, found: Found) -> None:
    name = _dotted(node.func)
    last = name.rsplit(".", 1)[-1]
    first = node.args[0] if node.args else None
    if last in MODEL_LOADERS:
        given = first or _keyword(node, "model", "model_id", "repo_id")
        _note(found.models, _hub_id(given), where)
    elif last in DATASET_LOADERS or name in DATASET_LOADERS:
        _note(found.datasets, _hub_id(first), where)
    elif last in ("getenv", "get") and (last == "getenv" or "environ" in name):
        _secret(_text(first), where, found)
    elif last == "open" and _writes(node):
        place = node.func.value if isinstance(node.func, ast.Attribute) else first
        _note(found.outputs, _output(place), where)
    elif last in WRITERS and isinstance(node.func, ast.Attribute):
        _note(found.outputs, _output(node.func.value), where)
    elif last in SAVERS:
        _note(found.outputs, _output(node.args[-1] if node.args else None), where)


def _note(place: dict[str, str], value: str, where: str) -> None:
    if value:
        place.setdefault(value, where)


def _secret(name: str, where: str, found: Found) -> None:
    if SECRET_NAME.match(name):
        _note(found.secrets, name, where)


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _hub_id(node: ast.AST | None) -> str:
    text = _text(node)
    return text if HUB_ID.match(text) and not text.startswith(("./", "../")) else ""


def _output(node: ast.AST | None) -> str:
    """The file or folder that is written, relative to the run's folder, as far as it is literal.

    `root / "model" / "x.json"`, `os.path.join(root, "x.json")`, `f"{root}/x.json"`, `"x.json"`.
    """
    text = "/".join(_tail(node)).strip("/")
    return text if text and RESULT_NAME.match(text) and ".." not in text else ""


def _tail(node: ast.AST | None) -> list[str]:
    """The literal parts at the end of a path expression."""
    if isinstance(node, ast.Constant):
        text = _text(node)
        return [] if not text or text.startswith("/") else [text.removeprefix("./")]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        right = _tail(node.right)
        return [*_tail(node.left), *right] if right else []
    if isinstance(node, ast.JoinedStr) and node.values:
        text = _text(node.values[-1])
        return [text.lstrip("/")] if text.startswith("/") else []
    if isinstance(node, ast.Call):
        name = _dotted(node.func).rsplit(".", 1)[-1]
        if name == "join":
            parts = [_text(item) for item in node.args]
            literal = [part for part in parts[1:] if part]
            return literal if literal and parts[-1] else []
        if name in ("Path", "str") and len(node.args) == 1:
            return _tail(node.args[0])
    return []


def _writes(node: ast.Call) -> bool:
    position = 0 if isinstance(node.func, ast.Attribute) else 1
    mode = _text(node.args[position]) if len(node.args) > position else ""
    mode = mode or _text(_keyword(node, "mode"))
    return any(letter in mode for letter in "wax")


def _keyword(node: ast.Call, *names: str) -> ast.AST | None:
    return next((item.value for item in node.keywords if item.arg in names), None)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main(test: ast.AST) -> bool:
    return any(_text(part) == "__main__" for part in ast.iter_child_nodes(test))
