"""Can every card be computed on? Capability, memory, and a bf16 product against its true value.

    python cuda.py request.json response.json

reads   {"required": true?, "count": 1?, "name": "any"?, "min_vram_gib": 0?,
        "min_capability": "8.0"?}
        not required (the contract takes any device): no card is a SKIP with its reason;
        name: a part of the card's name, any case, blanks and dashes alike
writes  {"probe", "status", "seconds", "checks": [{name status found expected fix}],
        "packages": {name: version}}, under a temporary name, then renamed
exit    0 PASS or SKIP · 2 FAIL · 64 usage · anything else is a traceback
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SIZE = 512  # of the square matrices that are multiplied
TOLERANCE = 0.02  # bf16 keeps 8 bits: relative to the largest true value


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """`cuda available`, then for each card its capability, memory and arithmetic."""
    import torch

    packages = {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = int(request.get("count") or 1)
    if not count:
        found = "a torch built without CUDA" if torch.version.cuda is None else "no usable card"
        if not request.get("required"):
            reason = f"{found}; the contract takes any device"
            return {"checks": [check("cuda", "SKIP", reason, "any")], "packages": packages}
        fix = "take a host with a GPU and a driver, and a torch built for CUDA"
        return {"checks": [check("cuda", "FAIL", found, f"{wanted} card(s)", fix)]} | {
            "packages": packages
        }
    enough = count >= wanted
    fix = "" if enough else "take a host with more cards, or mend CUDA_VISIBLE_DEVICES"
    checks = [check("cuda", "PASS" if enough else "FAIL", count, f"{wanted} card(s)", fix)]
    for index in range(count):
        checks += check_card(torch, index, request)
    return {"checks": checks, "packages": packages}


def check_card(torch: Any, index: int, request: dict[str, Any]) -> list[dict[str, Any]]:
    card = torch.cuda.get_device_properties(index)
    gib, need = card.total_memory / 2**30, float(request.get("min_vram_gib") or 0)
    capability = (card.major, card.minor)
    least = tuple(int(part) for part in str(request.get("min_capability") or "0.0").split("."))
    title = f"card {index} {card.name}"
    # The driver keeps some of a card for itself: 24 GiB on the label are 23.6 here.
    memory_ok, capability_ok = gib >= need * 0.95, capability >= least
    shown = ".".join(map(str, capability))
    name = str(request.get("name") or "any")
    name_ok = name == "any" or plain(name) in plain(card.name)
    return [
        check(
            f"{title} name",
            "PASS" if name_ok else "FAIL",
            card.name,
            name,
            "" if name_ok else "take a host with the card of the contract",
        ),
        check(
            f"{title} memory",
            "PASS" if memory_ok else "FAIL",
            f"{gib:.1f} GiB",
            f"{need:g} GiB",
            "" if memory_ok else "take a card with more memory",
        ),
        check(
            f"{title} capability",
            "PASS" if capability_ok else "FAIL",
            shown,
            ".".join(map(str, least)),
            "" if capability_ok else "take a newer card",
        ),
        check_product(torch, index, title, shown),
    ]


def plain(name: str) -> str:
    """`RTX-4090` and `NVIDIA GeForce RTX 4090` are compared without blanks and dashes."""
    return "".join(character for character in name.lower() if character.isalnum())


def check_product(torch: Any, index: int, title: str, capability: str) -> dict[str, Any]:
    """A product on the card in bf16, against the same one here in fp32."""
    expected = f"bf16 product within {TOLERANCE:g}"
    try:
        generator = torch.Generator().manual_seed(0)
        left = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
        right = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
        found = (left.to(f"cuda:{index}") @ right.to(f"cuda:{index}")).float().cpu()
        true = left.float() @ right.float()
        error = float((found - true).abs().max() / true.abs().max())
    except Exception as failure:  # noqa: BLE001 - whatever a broken driver raises is the finding
        fix = f"take a torch built for capability {capability}, or another host"
        text = f"{type(failure).__name__}: {failure}"[:300]
        return check(f"{title} bf16", "FAIL", text, expected, fix)
    if not error <= TOLERANCE:
        return check(f"{title} bf16", "FAIL", f"{error:.4f}", expected, "take another host")
    return check(f"{title} bf16", "PASS", f"{error:.4f}", expected)


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
