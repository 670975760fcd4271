"""Reading the host: parsers on recorded text, cgroups on folders laid out like real ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from remote.agent.history import History
from remote.agent.resources import (
    cgroup,
    disk,
    gpus,
    parse_gpu_processes,
    parse_gpus,
    sample,
)

TWO_CARDS = (
    "0, GPU-aa, NVIDIA H200, 143771, 3, 0, 570.86.15\n"
    "1, GPU-bb, NVIDIA A100-SXM4-80GB MIG 1g.10gb, [N/A], [N/A], [N/A], 570.86.15\n"
)


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cards() -> None:
    """Every card is listed; figures that the driver doesn't give are None, not zero."""
    first, second = parse_gpus(TWO_CARDS)
    assert first == {
        "index": 0,
        "uuid": "GPU-aa",
        "name": "NVIDIA H200",
        "memory_total_mib": 143771,
        "memory_used_mib": 3,
        "utilization": 0,
        "driver": "570.86.15",
    }
    assert (second["index"], second["memory_total_mib"], second["utilization"]) == (1, None, None)


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't …\n"]
)
def test_no_cards(text: str) -> None:
    """What the tool prints instead of rows is no card."""
    assert parse_gpus(text) == []


def test_gpu_processes() -> None:
    """Pids with what they hold; unreadable memory is None."""
    assert parse_gpu_processes("12, 1024, GPU-aa\n13, [N/A], GPU-bb\n") == [
        {"pid": 12, "memory_mib": 1024, "gpu_uuid": "GPU-aa"},
        {"pid": 13, "memory_mib": None, "gpu_uuid": "GPU-bb"},
    ]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'couldn't talk to driver'; exit 9", "exited"),
        ("exit 0", "no card"),
        (None, "not on this host"),
    ],
)
def test_why_there_is_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, problem: str
) -> None:
    """No tool, no driver and no card are told apart."""
    if script is not None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    cards, found = gpus()
    assert cards == []
    assert problem in found


def test_a_hanging_driver_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that hangs costs its limit and no more."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("remote.agent.resources.GPU_TIMEOUT_SECONDS", 0.2)
    assert "did not answer" in gpus()[1]


def test_cgroup_version_2(tmp_path: Path) -> None:
    """Limits of our group and those above it: the tightest counts."""
    root = lay_out(
        tmp_path / "cgroup",
        {
            "a/memory.max": "8000\n",
            "a/cpu.max": "max 100000\n",
            "a/b/memory.max": "max\n",
            "a/b/cpu.max": "150000 100000\n",
            "a/b/memory.current": "5000\n",
            "a/b/memory.stat": "anon 1\ninactive_file 2000\n",
            "a/b/memory.events": "low 0\noom 2\noom_kill 1\n",
            "a/b/cpu.stat": "usage_usec 2500000\n",
        },
    )
    own = lay_out(tmp_path, {"self": "0::/a/b\n"}) / "self"
    assert cgroup(root, own) == {
        "cpu_cores": 1.5,
        "cpu_usage_seconds": 2.5,
        "memory_limit_bytes": 8000,
        "memory_used_bytes": 3000,
        "oom_kills": 1,
    }


def test_cgroup_version_1_in_a_container(tmp_path: Path) -> None:
    """The path in /proc is the machine's; the mount's root is ours. "No limit" is None."""
    root = lay_out(
        tmp_path / "cgroup",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "700\n",
            "memory/memory.stat": "total_inactive_file 100\n",
            "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "cpu/cpu.cfs_quota_us": "400000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "cpuacct/cpuacct.usage": "1500000000\n",
        },
    )
    text = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"
    own = lay_out(tmp_path, {"self": text}) / "self"
    assert cgroup(root, own) == {
        "cpu_cores": 4.0,
        "cpu_usage_seconds": 1.5,
        "memory_limit_bytes": None,
        "memory_used_bytes": 600,
        "oom_kills": 3,
    }


def test_cgroup_unreadable(tmp_path: Path) -> None:
    """Without any cgroup everything is unknown."""
    assert set(cgroup(tmp_path / "none", tmp_path / "missing").values()) == {None}


def test_this_machine(tmp_path: Path) -> None:
    """One reading of the real machine: disk and load are there whatever else is."""
    reading = sample(str(tmp_path))
    assert reading["disk"]["total_bytes"] >= reading["disk"]["free_bytes"] > 0
    assert len(reading["load"]) == 3
    with pytest.raises(OSError, match="missing"):
        disk(os.path.join(str(tmp_path), "missing"))


def test_history_is_bounded(tmp_path: Path) -> None:
    """A long run's history stays under its limit, evenly spaced, from the first line on."""
    history = History(tmp_path / "h.jsonl", 8)
    for number in range(100):
        if number % history.stride == 0:
            history.append({"n": number})
    numbers = [json.loads(line)["n"] for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert len(numbers) <= 8
    assert numbers[0] == 0
    assert numbers[-1] >= 80


def test_history_goes_on_after_a_crash(tmp_path: Path) -> None:
    """Half a line that a crash left is dropped, whole ones are kept."""
    path = tmp_path / "h.jsonl"
    path.write_text('{"n": 1}\n{"n": 2')
    History(path, 8).append({"n": 3})
    assert path.read_text() == '{"n": 1}\n{"n":3}\n'
