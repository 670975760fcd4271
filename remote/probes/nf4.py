"""Does bitsandbytes quantise to NF4 and back? Asked only where 4-bit weights are wanted.

    python nf4.py request.json response.json

reads   {"quantization": "nf4"?}   another one, or null, is a SKIP
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# NF4 of normal numbers is off by 0.09 of their spread (measured; the same on CPU and card).
LOW, HIGH = 0.05, 0.15


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """One round trip, on the first card or without one."""
    asked = str(request.get("quantization", "nf4"))
    if "nf4" not in asked.lower():
        skipped = check("nf4", "SKIP", f"quantization {asked}", "only for nf4")
        return {"checks": [skipped], "packages": {}}
    expected = f"error from {LOW} to {HIGH} of the spread"
    try:
        import bitsandbytes.functional
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        numbers = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).to(device)
        packed, state = bitsandbytes.functional.quantize_4bit(
            numbers.bfloat16(), quant_type="nf4", compress_statistics=True
        )
        back = bitsandbytes.functional.dequantize_4bit(packed, state).float()
        error = float((back - numbers).pow(2).mean().sqrt() / numbers.std())
    except Exception as failure:  # noqa: BLE001 - whatever a broken build raises is the finding
        text = f"{type(failure).__name__}: {failure}"[:300]
        fix = "install a bitsandbytes that fits this torch and driver (pip install -U bitsandbytes)"
        return {"checks": [check("nf4", "FAIL", text, expected, fix)], "packages": {}}
    packages = {"bitsandbytes": importlib.metadata.version("bitsandbytes")}
    found = f"{error:.3f} on {device}, {packed.element_size() * packed.numel()} bytes"
    good = LOW <= error <= HIGH
    fix = "" if good else "reinstall bitsandbytes: its 4-bit numbers are wrong"
    return {
        "checks": [check("nf4", "PASS" if good else "FAIL", found, expected, fix)],
        "packages": packages,
    }


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
