from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from remote.agent import nvidia

CASES = Path(__file__).parent / "cases" / "nvidia"


def _tool(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_what_the_tool_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text as it is, no problem."""
    _tool(tmp_path, monkeypatch, 'echo "said $1"')
    assert nvidia.ask(["-L"]) == ("said -L\n", "", "")


def test_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent is told from broken."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.ask(["-L"]).why == nvidia.ABSENT


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's own words and its exit code."""
    _tool(tmp_path, monkeypatch, "echo NVIDIA-SMI has failed; exit 9")
    said = nvidia.ask([])
    assert (said.text, said.why) == ("", nvidia.FAILED)
    assert "exited 9: NVIDIA-SMI has failed" in said.problem


def test_a_tool_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up after the limit, even when a child keeps the pipe open."""
    _tool(tmp_path, monkeypatch, "sleep 5 & sleep 5")
    began = time.monotonic()
    assert nvidia.ask([], limit_seconds=0.3).why == nvidia.SILENT
    assert time.monotonic() - began < 3


def test_cuda_version_of_the_table() -> None:
    """The newest CUDA that the driver serves; nothing from other text."""
    assert nvidia.parse_cuda_version((CASES / "table.txt").read_text()) == "12.4"
    assert nvidia.parse_cuda_version("CUDA Version: N/A") == ""


def test_slices_of_a_split_card() -> None:
    """Each MIG slice with its card and nominal memory."""
    found = nvidia.parse_slices((CASES / "mig-list.txt").read_text())
    assert [(part["index"], part["memory_mib"]) for part in found] == [(0, 10240), (0, 40960)]
    assert nvidia.parse_slices("GPU 0: NVIDIA A100 (UUID: GPU-1)\n") == []
