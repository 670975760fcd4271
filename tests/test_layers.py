"""The shape of the code: imports go one way, the agent stays old Python, no file says nothing.

cli → deployments → flows → tasks → experiment → remote.agent → the standard library.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from deployments.manifest import read_manifest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("cli", "deployments", "flows", "tasks", "experiment", "remote.agent")
# Run by another interpreter on a host or by hand: they import nothing of ours.
FOREIGN = ("remote/probes", "remote/trainers", "examples")
# What each package would shadow, were a file in `flows/` named like it and loaded by path.
TOP_LEVEL = {"cli", "deployments", "flows", "tasks", "experiment", "remote", "tests"}
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc"}
AGENT_PYTHON = "3.8-"


def sources(*folders: str) -> Iterator[Path]:
    """Every Python file of ours below these folders of the clone."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"__pycache__", "model"} & set(path.parts):
                yield path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer_of(name: str) -> int | None:
    """The layer that a module belongs to, by its dotted name; None for everybody else's."""
    for index, layer in enumerate(LAYERS):
        if name == layer or name.startswith(f"{layer}."):
            return index
    return None


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def where(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line} {what}"


def arrows_back(paths: Iterator[Path]) -> list[str]:
    found = []
    for path in paths:
        own = layer_of(dotted(path))
        for line, name in imports(path):
            other = layer_of(name)
            if own is not None and other is not None and other < own:
                found.append(where(path, line, f"imports {name}"))
    return found


def test_imports_go_one_way():
    """No layer imports one above it."""
    assert arrows_back(sources(*(layer.replace(".", "/") for layer in LAYERS))) == []


def test_an_arrow_back_is_seen(tmp_path, monkeypatch):
    """The check above can fail: a library that imports the command line is named by line."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / "experiment" / "money" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("import os\n\ndef f():\n    from cli.main import main\n")
    assert arrows_back(sources("experiment")) == [
        "experiment/money/bad.py:4 imports cli.main.main",
    ]


def test_the_library_knows_no_prefect():
    """`experiment` and the agent run, and are tested, without Prefect and without the CLI's own."""
    heavy = {"prefect", "typer", "rich"}
    found = [
        where(path, line, f"imports {name}")
        for path in sources("experiment", "remote/agent")
        for line, name in imports(path)
        if name.split(".")[0] in heavy
    ]
    assert found == []


def test_the_agent_imports_only_the_standard_library():
    """A host has a bare Python: nothing else may be needed there."""
    found = [
        where(path, line, f"imports {name}")
        for path in sources("remote/agent")
        for line, name in imports(path)
        if not name.startswith("remote.agent") and name.split(".")[0] not in _standard()
    ]
    assert found == []


def test_probes_and_trainers_import_nothing_of_ours():
    """They are carried to the host alone, one file each."""
    found = [
        where(path, line, f"imports {name}")
        for path in sources(*FOREIGN)
        for line, name in imports(path)
        if name.split(".")[0] in TOP_LEVEL
    ]
    assert found == []


def test_the_agent_runs_on_python_3_8():
    """No syntax and no library call in the agent is newer than 3.8 (vermin reads both)."""
    vermin = Path(sys.executable).with_name("vermin")
    argv = [vermin, f"-t={AGENT_PYTHON}", "--no-tips", "--violations", ROOT / "remote" / "agent"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_flow_is_named_like_a_package():
    """A path entrypoint puts `flows/` first on sys.path: such a file would hide the package."""
    names = {path.stem for path in (ROOT / "flows").glob("*.py")}
    assert names & (TOP_LEVEL | _standard()) == set()


def test_no_file_says_nothing():
    """No module is called utils, common or helpers."""
    folders = [*TOP_LEVEL, "benchmarks", "examples"]
    found = [
        str(path.relative_to(ROOT))
        for path in sources(*folders)
        if path.stem in VAGUE or path.parent.name in VAGUE
    ]
    assert found == []


def test_no_shell_is_started_from_python():
    """Programs are started by argv: no shell=True, no os.system, no os.popen."""
    found = [
        where(path, call.lineno, ast.unparse(call.func))
        for path in sources(*TOP_LEVEL, "benchmarks", "examples")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _starts_a_shell(call)
    ]
    assert found == []


def test_a_shell_is_seen():
    """The check above can fail."""
    bad = ("subprocess.run('x', shell=True)", "os.system('x')", "os.popen('x')")
    good = ("subprocess.run(['x'])", "run(argv, shell=False)")
    assert [_starts_a_shell(ast.parse(text, mode="eval").body) for text in bad] == [True] * 3
    assert [_starts_a_shell(ast.parse(text, mode="eval").body) for text in good] == [False] * 2


@pytest.mark.parametrize("entry", read_manifest(), ids=lambda entry: entry.name)
def test_every_deployment_imports(entry):
    """`prefect deploy` succeeds on an entrypoint that does not import; this does not."""
    from prefect import Flow

    module, _, function = entry.entrypoint.rpartition(".")
    flow = getattr(import_module(module), function)
    assert isinstance(flow, Flow)
    assert flow.retries in (0, None), "a retry would ask the person again"


def _starts_a_shell(call: ast.Call) -> bool:
    if ast.unparse(call.func) in ("os.system", "os.popen", "subprocess.getoutput"):
        return True
    return any(
        word.arg == "shell" and not (isinstance(word.value, ast.Constant) and not word.value.value)
        for word in call.keywords
    )


def _standard() -> set[str]:
    return set(sys.stdlib_module_names) | {"__future__"}
