"""What the host has and how much of it is used: GPUs, CPU and memory of our cgroup, load, disk.

In a container `nproc`, `free` and /proc show the machine underneath; the cgroup holds the truth
(version 2 first, then version 1). Everything that can't be read is None, never zero.
"""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from remote.agent import nvidia

GPU_TIMEOUT_SECONDS = 10.0
GPU_COLUMNS = "index,uuid,name,memory.total,memory.used,utilization.gpu,driver_version"
GPU_PROCESS_COLUMNS = "pid,used_memory,gpu_uuid"
CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Version 1 says "no limit" by a number near 2**63.
UNLIMITED_BYTES = 1 << 60

Numbers = Dict[str, Optional[float]]


def sample(path: str) -> Dict[str, Any]:
    """One reading of everything; `path` is a folder on the data disk.

    Returns:
        `{gpus: [...], gpu_problem, cpu: {cores, usage_seconds}, memory: {limit_bytes, used_bytes,
        oom_kills}, load: [1, 5, 15 minutes], disk: {...}}`.
    """
    cards, problem = gpus()
    limits = cgroup()
    return {
        "gpus": cards,
        "gpu_problem": problem,
        "cpu": {"cores": limits["cpu_cores"], "usage_seconds": limits["cpu_usage_seconds"]},
        "memory": {
            "limit_bytes": limits["memory_limit_bytes"],
            "used_bytes": limits["memory_used_bytes"],
            "oom_kills": limits["oom_kills"],
        },
        "load": list(os.getloadavg()),
        "disk": disk(path),
    }


def gpus() -> Tuple[List[Dict[str, Any]], str]:
    """The cards nvidia-smi lists, and why there are none ("" when there are).

    Each is `{index, uuid, name, memory_total_mib, memory_used_mib, utilization, driver}`, with
    None for figures that the driver does not give.
    """
    text, problem = _nvidia_smi(f"--query-gpu={GPU_COLUMNS}")
    return parse_gpus(text), problem


def gpu_processes() -> List[Dict[str, Any]]:
    """Processes that compute on a card: `[{pid, memory_mib, gpu_uuid}]`.

    In a container the driver may give pids of the machine underneath, or hide them.
    """
    text, _ = _nvidia_smi(f"--query-compute-apps={GPU_PROCESS_COLUMNS}")
    return parse_gpu_processes(text)


def parse_gpus(text: str) -> List[Dict[str, Any]]:
    """The rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`."""
    cards = []
    for row in _rows(text, 7):
        cards.append(
            {
                "index": int(row[0]) if row[0].isdigit() else None,
                "uuid": row[1],
                "name": row[2],
                "memory_total_mib": _number(row[3]),
                "memory_used_mib": _number(row[4]),
                "utilization": _number(row[5]),
                "driver": row[6],
            }
        )
    return cards


def parse_gpu_processes(text: str) -> List[Dict[str, Any]]:
    """The rows of `nvidia-smi --query-compute-apps=… --format=csv,noheader,nounits`."""
    return [
        {"pid": int(row[0]), "memory_mib": _number(row[1]), "gpu_uuid": row[2]}
        for row in _rows(text, 3)
        if row[0].isdigit()
    ]


def disk(path: str) -> Dict[str, Any]:
    """`{free_bytes, total_bytes, free_inodes, total_inodes}` for this user, on the path's disk.

    Inodes are None where the file system does not count them (btrfs, some network disks).

    Raises:
        OSError: the path can't be reached.
    """
    found = os.statvfs(path)
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_inodes": found.f_favail if found.f_files else None,
        "total_inodes": found.f_files or None,
    }


def cgroup(root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> Numbers:
    """`{cpu_cores, cpu_usage_seconds, memory_limit_bytes, memory_used_bytes, oom_kills}`.

    `memory_used_bytes` leaves out file pages that the kernel can drop. Limits of the groups above
    count too: the tightest wins.
    """
    paths = _memberships(membership)
    second = _version_2(root, paths.get("", "/"))
    if second["memory_used_bytes"] is not None:
        return second
    return _version_1(root, paths)


def _version_2(root: Path, path: str) -> Numbers:
    folders = _upwards(root, path)
    cores = [_quota_2(_text(folder / "cpu.max")) for folder in folders]
    limits = [_number(_text(folder / "memory.max")) for folder in folders]
    own = folders[0]
    usage = _table(_text(own / "cpu.stat")).get("usage_usec")
    return {
        "cpu_cores": _least(cores),
        "cpu_usage_seconds": usage / 1e6 if usage is not None else None,
        "memory_limit_bytes": _least(limits),
        "memory_used_bytes": _working_set(
            _number(_text(own / "memory.current")),
            _table(_text(own / "memory.stat")).get("inactive_file"),
        ),
        "oom_kills": _table(_text(own / "memory.events")).get("oom_kill"),
    }


def _version_1(root: Path, paths: Dict[str, str]) -> Numbers:
    memory = _upwards(root / "memory", paths.get("memory", "/"))
    cpu = _upwards(root / "cpu", paths.get("cpu", "/"))
    account = _upwards(root / "cpuacct", paths.get("cpuacct", "/"))[0]
    limits = [_number(_text(folder / "memory.limit_in_bytes")) for folder in memory]
    nanoseconds = _number(_text(account / "cpuacct.usage"))
    return {
        "cpu_cores": _least([_quota_1(folder) for folder in cpu]),
        "cpu_usage_seconds": nanoseconds / 1e9 if nanoseconds is not None else None,
        "memory_limit_bytes": _least(
            [limit for limit in limits if limit is not None and limit < UNLIMITED_BYTES]
        ),
        "memory_used_bytes": _working_set(
            _number(_text(memory[0] / "memory.usage_in_bytes")),
            _table(_text(memory[0] / "memory.stat")).get("total_inactive_file"),
        ),
        "oom_kills": _table(_text(memory[0] / "memory.oom_control")).get("oom_kill"),
    }


def _memberships(membership: Path) -> Dict[str, str]:
    """Controller → our path; version 2 has the empty controller name."""
    found: Dict[str, str] = {}
    for line in (_text(membership) or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                found[controller] = fields[2]
    return found


def _upwards(root: Path, path: str) -> List[Path]:
    """Our folder and those above it. In a container the path may be the machine's: then the root
    of the mount is our own group."""
    folder = root / path.strip("/")
    if ".." in path or not folder.is_dir():
        return [root]
    above = [folder]
    while folder != root:
        folder = folder.parent
        above.append(folder)
    return above


def _quota_2(text: Optional[str]) -> Optional[float]:
    fields = (text or "").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _quota_1(folder: Path) -> Optional[float]:
    quota = _number(_text(folder / "cpu.cfs_quota_us"))
    period = _number(_text(folder / "cpu.cfs_period_us"))
    if quota is None or not period or quota <= 0:
        return None
    return quota / period


def _working_set(used: Optional[float], droppable: Optional[float]) -> Optional[float]:
    return None if used is None else max(0, used - (droppable or 0))


def _least(values: List[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _table(text: Optional[str]) -> Dict[str, int]:
    """Lines of `name number`."""
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(text: Optional[str]) -> Optional[float]:
    """A number; None for `[N/A]`, `max`, nothing."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


def _rows(text: str, columns: int) -> List[List[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns]


def _nvidia_smi(query: str) -> Tuple[str, str]:
    """What the tool prints, and the problem that kept it from printing."""
    said = nvidia.ask([query, "--format=csv,noheader,nounits"], GPU_TIMEOUT_SECONDS)
    if said.problem or said.text.strip():
        return said.text, said.problem
    return "", "nvidia-smi lists no card"
