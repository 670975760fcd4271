"""Send files that a host does not have yet, and read sizes and digests back from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.errors import EvidenceMismatch, HostUnreachable, NotFound
from experiment.hosts.agent_door import AgentDoor, RequestRef

TRIES = 3
# Slower than this is a dead link: one minute, and what 256 KiB a second need.
_LEAST_SECONDS = 60.0
_SLOWEST_BYTES_PER_SECOND = 256 * 1024

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Item:
    """One file: where it lies here, where it goes, and what it has to be."""

    local: Path
    remote: str
    sha256: str
    bytes: int


def _silent(_name: str, _sent: int, _total: int) -> None:
    """Nobody watches."""


def upload(
    door: AgentDoor,
    items: Sequence[Item],
    ref: RequestRef,
    progress: Progress = _silent,
) -> dict[str, Any]:
    """Make the host hold every item, exactly.

    Args:
        progress: called with (file name, bytes sent, bytes in all).

    Returns:
        `{files: [{remote, bytes, sha256, sent}], bytes_sent}`.

    Raises:
        NotFound: a local file is gone.
        EvidenceMismatch: a file on the host differs after it was sent `TRIES` times.
        HostUnreachable: the link broke `TRIES` times at the same file.
    """
    before = _digests(door, items, ref)
    missing = [item for item in items if not _same(before.get(item.remote), item)]
    for item in missing:
        _send(door, item, progress)
    after = _digests(door, missing, ref) if missing else {}
    for item in missing:
        for _ in range(TRIES - 1):
            if _same(after.get(item.remote), item):
                break
            _send(door, item, progress)
            after.update(_digests(door, [item], ref))
        else:
            if not _same(after.get(item.remote), item):
                raise _differs(item, after.get(item.remote))
    sent = {item.remote for item in missing}
    return {
        "files": [
            {
                "remote": item.remote,
                "bytes": item.bytes,
                "sha256": item.sha256,
                "sent": item.remote in sent,
            }
            for item in items
        ],
        "bytes_sent": sum(item.bytes for item in missing),
    }


def _digests(door: AgentDoor, items: Sequence[Item], ref: RequestRef) -> dict[str, Any]:
    if not items:
        return {}
    paths = [item.remote for item in items]
    found = door.call("digest", {"paths": paths}, ref=ref, timeout=1800)
    files: dict[str, Any] = found["files"]
    return files


def _send(door: AgentDoor, item: Item, progress: Progress) -> None:
    if not item.local.is_file():
        raise NotFound("file to send is gone", str(item.local), exit_code=1)
    timeout = _LEAST_SECONDS + item.bytes / _SLOWEST_BYTES_PER_SECOND
    for attempt in range(1, TRIES + 1):
        try:
            door.host.put(
                item.local,
                item.remote,
                timeout=timeout,
                progress=lambda sent, total: progress(item.local.name, sent, total),
            )
            return
        except HostUnreachable:
            if attempt == TRIES:
                raise


def _same(found: dict[str, Any] | None, item: Item) -> bool:
    return found is not None and (found["bytes"], found["sha256"]) == (item.bytes, item.sha256)


def _differs(item: Item, found: dict[str, Any] | None) -> EvidenceMismatch:
    there = "nothing" if found is None else f"{found['bytes']} bytes, {found['sha256']}"
    return EvidenceMismatch(
        "file on the host differs",
        item.remote,
        expected=f"{item.bytes} bytes, {item.sha256}",
        found=there,
        hint="look at the host's disk; charter run goes on with what is missing",
    )
