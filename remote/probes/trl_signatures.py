"""Do the installed libraries still take the arguments that the trainers pass?

    python trl_signatures.py request.json response.json

reads   {"trainer": "grpo"?, "programs": ["/project/train.py", ...]?}
        trainer: ../trainers/grpo.py; with neither, every program in ../trainers
        Each program is parsed, not run: every call of a class or function that it imports from trl,
        transformers or peft is compared, keyword by keyword, with what is installed. So the list of
        arguments is the program itself, and a person's own training script can be asked about too.
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LIBRARIES = ("trl", "transformers", "peft")


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """One check for each imported name that a program calls with keywords."""
    trainers = Path(__file__).resolve().parent.parent / "trainers"
    programs = [Path(one) for one in request.get("programs") or []]
    if request.get("trainer"):
        programs.append(trainers / f"{request['trainer']}.py")
    programs = programs or sorted(trainers.glob("*.py"))
    checks, used = [], set()
    for program in programs:
        try:
            tree = ast.parse(program.read_text(encoding="utf-8"), str(program))
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            checks.append(
                check(program.name, "FAIL", str(error)[:300], "a Python program", "mend the file")
            )
            continue
        origins = imported_names(tree)
        for name, keywords in sorted(keywords_passed(tree, origins).items()):
            used.add(origins[name][0].split(".")[0])
            checks.append(compare(program, origins[name], keywords))
    if not checks:
        checks = [check("signatures", "SKIP", "no call of a library", "calls to compare")]
    return {"checks": checks, "packages": {name: version(name) for name in sorted(used)}}


def imported_names(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Local name -> (module, name there), for what comes from the libraries."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.split(".")[0] in LIBRARIES:
            for one in node.names:
                found[one.asname or one.name] = (node.module, one.name)
    return found


def keywords_passed(
    tree: ast.AST, origins: dict[str, tuple[str, str]]
) -> dict[str, dict[str, int]]:
    """Name -> keyword -> line, over all direct calls in the program."""
    found: dict[str, dict[str, int]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in origins:
            keywords = {one.arg: one.value.lineno for one in node.keywords if one.arg}
            found.setdefault(node.func.id, {}).update(keywords)
    return found


def compare(program: Path, origin: tuple[str, str], keywords: dict[str, int]) -> dict[str, Any]:
    module, name = origin
    title, library = f"{program.name}: {module}.{name}", module.split(".")[0]
    expected = f"takes {', '.join(keywords)}" if keywords else "exists"
    try:
        thing = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(thing).parameters
    except Exception as error:  # noqa: BLE001 - lazy modules raise anything; it is the finding
        text = f"{type(error).__name__}: {error}"[:300]
        fix = f"{library} {version(library)} has no usable {name}: pin the version the program uses"
        return check(title, "FAIL", text, expected, fix)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return check(title, "PASS", "takes any keyword", expected)
    gone = [f"{one} (line {keywords[one]})" for one in keywords if one not in parameters]
    if gone:
        fix = f"{library} {version(library)} does not take it: pin the version the program uses"
        return check(title, "FAIL", f"does not take {', '.join(gone)}", expected, fix)
    return check(title, "PASS", f"takes all {len(keywords)}", expected)


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


# --- the same end in every probe ----------------------------------------------------------------


def check(name: str, status: str, found: object, expected: object, fix: str = "") -> dict[str, Any]:
    """One outcome; `fix` is the next move and only given with FAIL."""
    return {"name": name, "status": status, "found": found, "expected": expected, "fix": fix}


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        print(f"usage: python {argv[0]} REQUEST.json RESPONSE.json", file=sys.stderr)
        return 64
    here, began = Path(__file__).resolve(), time.monotonic()
    # This folder's names (cuda, tokenizer) must not stand in for anybody's packages.
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here.parent]
    # Nothing is compiled here, and importing the compiler costs two seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    answer = probe(json.loads(Path(argv[1]).read_text(encoding="utf-8")))
    states = [one["status"] for one in answer["checks"]]
    status = "FAIL" if "FAIL" in states else "PASS" if "PASS" in states else "SKIP"
    seconds = round(time.monotonic() - began, 3)
    answer = {
        "schema_version": 1,
        "probe": here.stem,
        "status": status,
        "seconds": seconds,
        **answer,
    }
    temporary = Path(f"{argv[2]}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(answer, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(argv[2])
    return 2 if status == "FAIL" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
