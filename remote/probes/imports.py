"""Do the modules that the job needs import, and in which versions?

    python imports.py request.json response.json

reads   {"modules": ["torch", "trl", ...], "versions": {"trl": "1.16.0"}?}
        modules default to torch transformers trl peft accelerate datasets; `versions` are exact
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODULES = ["torch", "transformers", "trl", "peft", "accelerate", "datasets"]


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """One check a module: it imports, and in the wanted version where one is wanted."""
    wanted = dict(request.get("versions") or {})
    checks, packages = [], {}
    for name in dict.fromkeys([*(request.get("modules") or MODULES), *wanted]):
        one = import_one(name, wanted.get(name))
        checks.append(one)
        if one["status"] == "PASS":
            packages[name] = one["found"]
    return {"checks": checks, "packages": packages}


def import_one(name: str, wanted: str | None) -> dict[str, Any]:
    expected, title = wanted or "importable", f"import {name}"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever a broken package raises is the finding
        fix = f"add {name} to the requirements file, or repair the base environment"
        return check(title, "FAIL", f"{type(error).__name__}: {error}"[:300], expected, fix)
    version = version_of(name, module)
    # `2.13.0+cpu` and `2.13.0+cu130` are builds of the one version.
    if wanted and version not in (wanted, "unknown") and version.split("+")[0] != wanted:
        fix = f"pin {name}=={wanted} in the requirements file"
        return check(title, "FAIL", version, expected, fix)
    return check(title, "PASS", version, expected)


def version_of(name: str, module: Any) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


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
