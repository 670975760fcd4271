"""Which process is meant, and whether it lives.

A process is identified by pid, start time and boot id together: a pid alone is reused. A zombie
is dead. Processes that left their group are found by the environment variables they carry.
Linux reads /proc; macOS (controllers only) asks `ps` and `sysctl`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional

Identity = Dict[str, Any]

PROC = "/proc"
PS_TIMEOUT_SECONDS = 10.0
DEAD_STATES = ("Z", "X", "x")

# What a trainer and everything it starts carry; see `job_environment`.
LAUNCH_TAG = "CHARTER_LAUNCH"
DATA_ROOT_TAG = "CHARTER_DATA_ROOT"
# What a host that shares its machine with others gives to everything it runs, logins too.
INSTANCE_TAG = "CHARTER_INSTANCE_TOKEN"


class Facts(NamedTuple):
    """One row of the process table. `start` is in clock ticks since boot (macOS: Unix seconds),
    `tty` 0 without a controlling terminal."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    tty: int
    start: int


def identify(pid: int) -> Optional[Identity]:
    """`{"pid", "start", "boot_id"}` of the process that has this pid now; None when there is none.

    A zombie still has an identity; `alive` says that it is dead.
    """
    found = facts(pid)
    return identity_of(found) if found is not None else None


def identity_of(found: Facts) -> Identity:
    return {"pid": found.pid, "start": found.start, "boot_id": boot_id()}


def alive(identity: Optional[Mapping[str, Any]]) -> bool:
    """Whether this very process runs: same pid, same start time, same boot, and no zombie."""
    return state(identity) == "running"


def state(identity: Optional[Mapping[str, Any]]) -> str:
    """`running`, `zombie`, or `gone` (never was, ended, or its pid now belongs to another)."""
    if not identity or identity.get("pid") is None:
        return "gone"
    found = facts(int(identity["pid"]))
    if found is None or found.start != identity.get("start"):
        return "gone"
    if identity.get("boot_id") != boot_id():
        return "gone"
    return "zombie" if found.state in DEAD_STATES else "running"


def facts(pid: int) -> Optional[Facts]:
    """The process table's row for a pid, None when there is none."""
    if pid <= 0:
        return None
    if not _has_proc():
        return next(iter(_ps(["-p", str(pid)])), None)
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as handle:
            return parse_stat(handle.read().decode("utf-8", "replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def all_facts() -> List[Facts]:
    """Every process that can be seen now."""
    if not _has_proc():
        return list(_ps(["-A"]))
    rows = (facts(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return [row for row in rows if row is not None]


def tagged(tags: Mapping[str, Optional[str]]) -> List[Facts]:
    """Living processes whose environment at start held all tags (None: any value).

    Processes whose environment this user may not read are left out: they are not ours.
    """
    rows = [row for row in all_facts() if row.state not in DEAD_STATES]
    if _has_proc():
        return [row for row in rows if _carries(environment(row.pid), tags)]
    held = _ps_environments()
    return [row for row in rows if _carries(held.get(row.pid, {}), tags)]


def group_members(group: int) -> List[Facts]:
    """Living processes of a process group."""
    return [row for row in all_facts() if row.group == group and row.state not in DEAD_STATES]


def environment(pid: int) -> Dict[str, str]:
    """The environment a process was started with; empty when it may not be read or is gone."""
    if not _has_proc():
        return _ps_environments().get(pid, {})
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as handle:
            block = handle.read().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(item.split("=", 1) for item in block.split("\0") if "=" in item)


def command_line(pid: int) -> str:
    """The command line with spaces between arguments; empty for a zombie or a kernel thread."""
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as handle:
            return handle.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def send(identity: Mapping[str, Any], number: signal.Signals, group: bool = False) -> bool:
    """Signal this very process, or the whole group it leads; False when it is gone.

    Raises:
        PermissionError: it belongs to another user.
    """
    if not alive(identity):
        return False
    try:
        if group:
            os.killpg(int(identity["pid"]), number)
        else:
            os.kill(int(identity["pid"]), number)
    except ProcessLookupError:
        return False
    return True


def boot_id() -> str:
    """Changes with every boot of the kernel (in a container: of the machine under it).

    Raises:
        OSError: neither /proc nor sysctl answers.
    """
    if _has_proc():
        with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as handle:
            return handle.read().strip()
    return _sysctl("kern.bootsessionuuid")


def machine_id() -> str:
    """Stays the same over boots; containers made from one image may share it."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(path, encoding="ascii") as handle:
                known = handle.read().strip()
        except OSError:
            continue
        if known:
            return known
    if sys.platform == "darwin":
        return _sysctl("kern.uuid")
    return f"host-{os.uname().nodename}"


def parse_stat(text: str) -> Facts:
    """One /proc/PID/stat line. The command in parentheses may itself hold anything."""
    pid, rest = text.split(" ", 1)
    fields = rest[rest.rindex(")") + 2 :].split()
    return Facts(
        pid=int(pid),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        tty=int(fields[4]),
        start=int(fields[19]),
    )


def parse_ps(text: str) -> List[Facts]:
    """Lines of `ps -o pid=,stat=,ppid=,pgid=,sess=,tty=,lstart=` under LC_ALL=C."""
    rows = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 11:
            continue
        started = time.mktime(time.strptime(" ".join(fields[6:]), "%a %b %d %H:%M:%S %Y"))
        rows.append(
            Facts(
                pid=int(fields[0]),
                state=fields[1][0],
                parent=int(fields[2]),
                group=int(fields[3]),
                session=0,
                tty=0 if fields[5] in ("?", "??", "-") else 1,
                start=int(started),
            )
        )
    return rows


def _carries(held: Mapping[str, str], tags: Mapping[str, Optional[str]]) -> bool:
    return all(
        name in held and (wanted is None or held[name] == wanted) for name, wanted in tags.items()
    )


def _has_proc() -> bool:
    return os.path.exists(f"{PROC}/self/stat")


def _ps(which: Iterable[str]) -> Iterator[Facts]:
    columns = "pid=,stat=,ppid=,pgid=,sess=,tty=,lstart="
    return iter(parse_ps(_output(["ps", *which, "-o", columns])))


def _ps_environments() -> Dict[int, Dict[str, str]]:
    """`ps -E` puts the environment behind the command; a value with a space is cut there."""
    held = {}
    for line in _output(["ps", "-A", "-E", "-ww", "-o", "pid=,command="]).splitlines():
        words = line.split()
        if words and words[0].isdigit():
            held[int(words[0])] = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    return held


def _sysctl(name: str) -> str:
    text = _output(["sysctl", "-n", name]).strip()
    if not text:
        raise OSError(f"sysctl {name}: expected a value, found nothing")
    return text


def _output(argv: List[str]) -> str:
    """What a system tool prints; empty when it finds nothing (`ps` then exits 1)."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, LC_ALL="C"),
        timeout=PS_TIMEOUT_SECONDS,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")
