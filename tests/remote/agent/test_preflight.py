from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent import nvidia, resources
from remote.agent.errors import AgentError
from remote.agent.files import read_json
from remote.agent.layout import Layout
from remote.agent.preflight import (
    cuda_checks,
    disk_checks,
    gpu_checks,
    name_fits,
    split_cards,
)

Ask = Callable[..., dict[str, Any]]
CASES = Path(__file__).parent / "cases" / "nvidia"
SAID = nvidia.Said("x", "", "")

# recorded output, wanted name, count, GiB on every card, failed checks
GPU_CASES: list[tuple[str, str, int, float, set[str]]] = [
    ("one-4090", "RTX 4090", 1, 24, set()),
    ("one-4090", "any", 1, 0, set()),
    ("one-4090", "RTX 4090", 2, 24, {"gpu_count"}),
    ("one-4090", "RTX 3090", 1, 24, {"gpu"}),
    ("one-4090", "RTX 4090", 1, 32, {"vram[0]"}),
    ("two-unequal", "A100", 2, 40, set()),
    ("two-unequal", "A100", 2, 80, {"vram[1]"}),
    ("two-unequal", "A100-80GB", 2, 40, {"gpu"}),
    ("mig", "A100", 1, 40, set()),
    ("mig", "A100", 1, 80, {"vram[0]"}),
    ("unreadable", "RTX 3090", 1, 0, set()),
    ("unreadable", "RTX 3090", 1, 24, {"vram[0]"}),
]

NAMES = [
    ("any", "NVIDIA H20", True),
    ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
    ("rtx4090", "NVIDIA GeForce RTX 4090", True),
    ("RTX 4090", "NVIDIA GeForce RTX 4090 D", False),
    ("RTX 4090 D", "NVIDIA GeForce RTX 4090 D", True),
    ("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False),
    ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
    ("A100", "NVIDIA A100-SXM4-80GB", True),
    ("H20", "NVIDIA H200", False),
    ("V100", "Tesla V100-SXM2-32GB", True),
    ("A10", "NVIDIA A100-SXM4-80GB", False),
]


@pytest.mark.parametrize(("case", "name", "count", "vram", "failed"), GPU_CASES)
def test_gpu_checks(case: str, name: str, count: int, vram: float, failed: set[str]) -> None:
    """Number, name and memory of every card, from the tool's recorded output."""
    cards = resources.parse_gpus((CASES / f"{case}.csv").read_text())
    listing = (CASES / "mig-list.txt").read_text() if case == "mig" else ""
    cards = split_cards(cards, nvidia.parse_slices(listing))
    checks = gpu_checks(cards, SAID, name, count, vram)
    assert {check["name"] for check in checks if check["status"] == "FAIL"} == failed
    assert all(check["fix"] for check in checks if check["status"] == "FAIL")


@pytest.mark.parametrize(("wanted", "found", "fits"), NAMES)
def test_card_names(wanted: str, found: str, fits: bool) -> None:
    """What people write against what drivers say; another variant is another card."""
    assert name_fits(wanted, found) is fits


@pytest.mark.parametrize(
    ("why", "name", "vram", "status"),
    [
        (nvidia.ABSENT, "any", 0, "SKIP"),
        (nvidia.FAILED, "any", 0, "SKIP"),
        ("", "any", 0, "SKIP"),
        (nvidia.SILENT, "any", 0, "FAIL"),
        (nvidia.ABSENT, "any", 8, "FAIL"),
        (nvidia.ABSENT, "RTX 4090", 0, "FAIL"),
    ],
)
def test_hosts_without_cards(why: str, name: str, vram: float, status: str) -> None:
    """No GPU is fine only where none is asked for; a tool that hangs never is."""
    problem = "some problem" if why else ""
    checks = gpu_checks([], nvidia.Said("", problem, why), name, 1, vram)
    assert [check["status"] for check in checks] == [status]
    assert "no" in checks[0]["found"] or "problem" in checks[0]["found"]


@pytest.mark.parametrize(
    ("driver", "minimum", "status"),
    [
        ("12.4", "12.1", "PASS"),
        ("12.4", "12.10", "FAIL"),
        ("9.2", "11", "FAIL"),
        ("", "12", "FAIL"),
    ],
)
def test_cuda(driver: str, minimum: str, status: str) -> None:
    """Versions compare as numbers; an unknown one does not pass."""
    assert [check["status"] for check in cuda_checks(driver, minimum)] == [status]
    assert cuda_checks(driver, None) == []


def test_disk_and_inodes() -> None:
    """Space and inodes apart; a file system without an inode limit is skipped with a word."""
    disk = {"free_bytes": 5 << 30, "total_bytes": 9 << 30, "free_inodes": 10}
    checks = {check["name"]: check["status"] for check in disk_checks(disk, 6, 5)}
    assert checks == {"disk": "FAIL", "inodes": "PASS"}
    checks = {check["name"]: check["status"] for check in disk_checks(disk, 5, 11)}
    assert checks == {"disk": "PASS", "inodes": "FAIL"}
    assert disk_checks(dict(disk, free_inodes=None), 5, 11)[1]["status"] == "SKIP"


def test_the_step_reports_and_records(ask: Ask, layout: Layout) -> None:
    """A modest wish passes on this machine, an absurd one fails; the report lies with the job."""
    wish = {"min_free_inodes": 0, "gpu_count": 1, "gpu_name": "any", "min_vram_gib": 0}
    assert ask("preflight", min_free_gib=0, **wish)["evidence"]["status"] == "PASS"
    evidence = ask("preflight", min_free_gib=1e9, **wish)["evidence"]
    assert evidence["status"] == "FAIL"
    assert evidence["disk"]["free_bytes"] > 0
    recorded = read_json(layout.early_preflight)
    assert recorded["status"] == "FAIL"
    assert recorded["checks"] == evidence["checks"]


def test_limits_must_be_numbers(ask: Ask) -> None:
    """A text is no limit."""
    with pytest.raises(AgentError, match="min_free_gib"):
        ask("preflight", min_free_gib="20")
