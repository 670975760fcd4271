"""The one door to nvidia-smi, and pure readers of what it prints.

The tool may be absent, fail without a driver, or hang for ever in the kernel: it is never waited
for longer than its limit, not even after it was killed.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from typing import Any, Dict, List, NamedTuple, Sequence

LIMIT_SECONDS = 10.0

ABSENT = "absent"
FAILED = "failed"
SILENT = "silent"


class Said(NamedTuple):
    """What the tool printed; else `problem` says why not, and `why` is absent, failed or silent."""

    text: str
    problem: str
    why: str


def ask(arguments: Sequence[str], limit_seconds: float = LIMIT_SECONDS) -> Said:
    """Run `nvidia-smi ARGUMENTS…`. Never raises, returns within the limit and a second."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError:
        return Said("", "nvidia-smi is not on this host", ABSENT)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return Said("", f"nvidia-smi did not answer within {limit_seconds:g} s", SILENT)
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        problem = f"nvidia-smi exited {process.returncode}: {' '.join(text.split())[:200]}"
        return Said("", problem, FAILED)
    return Said(text, "", "")


def parse_cuda_version(text: str) -> str:
    """The newest CUDA version that the driver serves, from the plain table; "" when not there."""
    found = re.search(r"CUDA(?: UMD)? Version\s*:\s*([0-9]+(?:\.[0-9]+)*)", text)
    return found.group(1) if found else ""


def parse_slices(text: str) -> List[Dict[str, Any]]:
    """MIG slices in the output of `nvidia-smi -L`: `[{index (of the card), profile, memory_mib}]`.

    `memory_mib` is nominal, from the profile's name (`1g.5gb`); none for cards that are not split.
    """
    slices: List[Dict[str, Any]] = []
    card = None
    for line in text.splitlines():
        heading = re.match(r"GPU (\d+):", line)
        if heading:
            card = int(heading.group(1))
        part = re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s+Device", line)
        if part and card is not None:
            slices.append(
                {
                    "index": card,
                    "profile": part.group(1),
                    "memory_mib": int(part.group(2)) * 1024,
                }
            )
    return slices


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill without waiting: a process that is stuck in the driver can't die, nor be waited for."""
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
