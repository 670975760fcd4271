"""Step `preflight`, basic: disk, inodes, Python and GPUs, before any upload or installation.

Imports nothing beyond the standard library. A failed check is an answer, not an error: whoever
asks decides, and refuses with exit 2.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from typing import Any, Dict, List

from remote.agent import nvidia, resources
from remote.agent.answer import now_utc
from remote.agent.errors import usage
from remote.agent.files import write_json
from remote.agent.layout import Layout

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
GIB = 1 << 30
# Drivers keep a little of each card for themselves: a "24 GB" card reports 24564 MiB.
MEMORY_TOLERANCE = 0.02
# Suffixes that make another, weaker or stronger card out of the same number.
VARIANTS = {"d", "ti", "super", "laptop", "max", "mobile", "ada"}
LIMITS = ("min_free_gib", "min_free_inodes", "gpu_count", "min_vram_gib")

_CARD_KEYS = ("index", "name", "memory_total_mib", "memory_used_mib", "utilization")

Check = Dict[str, Any]
Card = Dict[str, Any]


def run(request: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Request `{min_free_gib, min_free_inodes, gpu_count, gpu_name ("any" or a card),
    min_vram_gib (of every card), cuda_min (text or null)}`.

    Evidence `{status PASS|FAIL, checks [{name, status PASS|FAIL|SKIP, found, expected, fix}],
    gpus [{index, name, memory_total_mib, memory_used_mib, utilization}], disk {free_bytes,
    total_bytes, free_inodes}}`; also written to the job's `early-preflight.json`.

    Raises:
        AgentError: usage, for limits that are no numbers.
        OSError: the data root's disk can't be asked.
    """
    limits = {name: _limit(request, name) for name in LIMITS}
    layout.data_root.mkdir(parents=True, exist_ok=True)
    disk = resources.disk(str(layout.data_root))
    cards, said = observe_cards()
    cuda = request.get("cuda_min")
    driver_cuda = nvidia.parse_cuda_version(nvidia.ask([]).text) if cuda and cards else ""
    checks = [
        _python(),
        _writable(layout),
        *disk_checks(disk, limits["min_free_gib"], limits["min_free_inodes"]),
        *gpu_checks(
            cards,
            said,
            str(request.get("gpu_name") or "any"),
            int(limits["gpu_count"]),
            limits["min_vram_gib"],
        ),
        *cuda_checks(driver_cuda, cuda),
    ]
    failed = any(check["status"] == FAIL for check in checks)
    evidence = {"status": FAIL if failed else PASS, "checks": checks, "gpus": cards, "disk": disk}
    write_json(
        layout.early_preflight,
        dict(evidence, schema_version=1, python=platform.python_version(), at_utc=now_utc()),
    )
    return evidence


def observe_cards() -> tuple[List[Card], nvidia.Said]:
    """The host's cards, those split by MIG as their slices, and what the tool said."""
    said = nvidia.ask([f"--query-gpu={resources.GPU_COLUMNS}", "--format=csv,noheader,nounits"])
    cards = [
        {key: card[key] for key in _CARD_KEYS if key in card}
        for card in resources.parse_gpus(said.text)
    ]
    listing = nvidia.ask(["-L"]).text if cards else ""
    return split_cards(cards, nvidia.parse_slices(listing)), said


def split_cards(cards: List[Card], slices: List[Dict[str, Any]]) -> List[Card]:
    """Cards as they can be used: one that is split by MIG counts as its largest slice.

    CUDA gives a process one slice at most, so that a split card is never more than one card, and
    its own memory figure says nothing.
    """
    usable = []
    for card in cards:
        own = [part for part in slices if part["index"] == card["index"]]
        if own:
            best = max(own, key=lambda part: int(part["memory_mib"]))
            card = dict(
                card,
                name=f"{card['name']} MIG {best['profile']}",
                memory_total_mib=best["memory_mib"],
                memory_used_mib=None,
                utilization=None,
                mig=True,
            )
        usable.append(card)
    return usable


def gpu_checks(
    cards: List[Card], said: nvidia.Said, name: str, count: int, min_vram_gib: float
) -> List[Check]:
    """Checks of presence, number, name and memory; memory on every card, not only the first."""
    if not cards:
        problem = said.problem or "nvidia-smi lists no card"
        indifferent = name == "any" and min_vram_gib == 0
        # A tool that hangs is a broken host, not one without a GPU.
        if indifferent and said.why != nvidia.SILENT:
            reason = f"no GPU ({problem}); the contract takes any host"
            return [_check("gpu", SKIP, reason, "any", "")]
        expected = f"{count} x {name}"
        return [_check("gpu", FAIL, problem, expected, "take a host with a working GPU driver")]
    wanted = [card for card in cards if name_fits(name, str(card["name"]))]
    names = ", ".join(str(card["name"]) for card in cards)
    checks = [
        _check("gpu", PASS, names, name, "")
        if len(wanted) >= min(count, len(cards))
        else _check("gpu", FAIL, names, name, "take a host with that card, or change host.gpus"),
        _check(
            "gpu_count",
            PASS if len(cards) >= count else FAIL,
            str(len(cards)),
            f"at least {count}",
            "take a host with more cards, or lower host.gpus.count",
        ),
    ]
    return [*checks, *(_memory(card, min_vram_gib) for card in cards)]


def name_fits(wanted: str, found: str) -> bool:
    """Whether the driver's name is the card that the contract means.

    `RTX 4090`, `rtx4090` and `A100-80GB` fit `NVIDIA GeForce RTX 4090` and
    `NVIDIA A100-SXM4-80GB`; `RTX 4090` does not fit `NVIDIA GeForce RTX 4090 D`.
    """
    if wanted.lower() == "any":
        return True
    have = re.findall(r"[a-z0-9]+", found.lower())
    need = re.findall(r"[a-z0-9]+", wanted.lower())
    if (set(have) & VARIANTS) - set(need):
        return False
    joined = "".join(need)
    runs = {
        "".join(have[start:end])
        for start in range(len(have))
        for end in range(start + 1, len(have) + 1)
    }
    return joined in runs or set(need) <= set(have)


def cuda_checks(driver: str, minimum: Any) -> List[Check]:
    """Whether the driver serves the CUDA version that is needed; none when nothing is asked."""
    if not minimum:
        return []
    fix = "take an image with a newer driver"
    if not driver:
        return [_check("cuda", FAIL, "unknown", f"at least {minimum}", fix)]
    enough = _version(driver) >= _version(str(minimum))
    return [_check("cuda", PASS if enough else FAIL, driver, f"at least {minimum}", fix)]


def disk_checks(disk: Dict[str, Any], min_free_gib: float, min_free_inodes: float) -> List[Check]:
    """Free space and inodes of the data root's disk."""
    free = disk["free_bytes"] / GIB
    space = _check(
        "disk",
        PASS if free >= min_free_gib else FAIL,
        f"{free:.1f} GiB free",
        f"at least {min_free_gib:g} GiB",
        "free space on the data disk, or enlarge it",
    )
    inodes = disk["free_inodes"]
    if inodes is None:
        return [space, _check("inodes", SKIP, "the file system has no inode limit", "", "")]
    return [
        space,
        _check(
            "inodes",
            PASS if inodes >= min_free_inodes else FAIL,
            f"{inodes} free",
            f"at least {min_free_inodes:g}",
            "remove small files on the data disk",
        ),
    ]


def _memory(card: Card, min_vram_gib: float) -> Check:
    name = f"vram[{card['index']}]"
    total: float | None = card["memory_total_mib"]
    expected = f"at least {min_vram_gib:g} GiB"
    fix = "take a card with more memory, or lower host.min_vram_gib"
    if total is None:
        # An unreadable figure is enough only where nothing is asked.
        return _check(name, FAIL if min_vram_gib > 0 else SKIP, "unreadable", expected, fix)
    enough = total >= min_vram_gib * 1024 * (1 - MEMORY_TOLERANCE)
    return _check(name, PASS if enough else FAIL, f"{total / 1024:.1f} GiB", expected, fix)


def _python() -> Check:
    # The agent would not have started on an older one.
    return _check("python", PASS, platform.python_version(), "at least 3.8", "")


def _writable(layout: Layout) -> Check:
    root = str(layout.data_root)
    try:
        handle, path = tempfile.mkstemp(prefix=".charter-write-", dir=root)
    except OSError as error:
        return _check("data_root", FAIL, str(error), f"{root} writable", "mount or clear that disk")
    os.close(handle)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return _check("data_root", PASS, root, "writable", "")


def _check(name: str, status: str, found: str, expected: str, fix: str) -> Check:
    return {
        "name": name,
        "status": status,
        "found": found,
        "expected": expected,
        "fix": fix if status == FAIL else "",
    }


def _version(text: str) -> List[int]:
    return [int(part) for part in re.findall(r"[0-9]+", text)]


def _limit(request: dict[str, Any], name: str) -> float:
    value = request.get(name) or 0
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise usage(f"request.{name}: expected a number from 0, found {value!r}")
    return value
