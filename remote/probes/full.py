"""Runs several probes in one process, since importing torch and trl costs more than all of them.

    python full.py request.json response.json

reads   {"probes": {"imports": {...}, "cuda": {...}, ...}}   name -> that probe's own request
        names: imports cuda nf4 trl_signatures shards tokenizer (the files beside this one)
writes  {"probe": "full", "status", "seconds", "checks": [{probe name status found expected fix}],
        "packages": {name: version}, "probes": {name: {status, seconds}}}, atomically
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback

A probe that raises is a FAIL of that probe, and the others still run. One that takes the process
down with it (a segfault in a driver) leaves no response: run them one by one then.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """The asked probes, in the order asked."""
    checks: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    probes: dict[str, dict[str, Any]] = {}
    for name, own_request in dict(request["probes"]).items():
        began = time.monotonic()
        try:
            answer = load(name).probe(own_request)
        except Exception as error:  # noqa: BLE001 - one broken probe must not hide the others
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"[:300]
            failed = check(name, "FAIL", text, "an answer", "see the traceback in the log")
            answer = {"checks": [failed], "packages": {}}
        states = [one["status"] for one in answer["checks"]]
        probes[name] = {
            "status": "FAIL" if "FAIL" in states else "PASS" if "PASS" in states else "SKIP",
            "seconds": round(time.monotonic() - began, 3),
        }
        checks += [{"probe": name, **one} for one in answer["checks"]]
        packages |= answer["packages"]
    return {"checks": checks, "packages": packages, "probes": probes}


def load(name: str) -> Any:
    """The probe's file as a module under a name that no package has."""
    path = Path(__file__).resolve().parent / f"{name}.py"
    if not path.is_file() or path.name == Path(__file__).name:
        raise FileNotFoundError(f"no probe called {name!r} beside {Path(__file__).name}")
    spec = importlib.util.spec_from_file_location(f"charter_probe_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
