"""The seal: one signed statement over every file of a results folder and the ledger's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.errors import EvidenceMismatch, GuardRefused, NotFound
from experiment.evidence import verify
from experiment.evidence.chain import check_chain, head, write_ledger
from experiment.evidence.keys import SigningKey
from experiment.evidence.statement import signed_statement
from remote.agent.files import sha256_bytes, write_atomic


def seal(
    results_dir: Path,
    *,
    job: str,
    run_id: str,
    entries: Sequence[Mapping[str, Any]],
    key: SigningKey,
) -> dict[str, Any]:
    """Write `ledger.jsonl`, `verify.py`, the public key and, last, the seal over everything.

    Covered are every file and link in the folder but the envelope itself: bytes, exec bit, link
    target; and count and head of the ledger chain, so that a dropped tail is noticed. The same
    folder, entries and key give the same seal; a second call replaces the first one's.

    Args:
        entries: the run's whole ledger so far, in order.

    Returns:
        `{"seal": path in the folder, "sha256", "count", "head", "files", "key_id"}`.

    Raises:
        NotFound: no such folder.
        EvidenceMismatch: the chain is broken, or holds entries of another run.
        GuardRefused: a file that can't be sealed (a socket, unreadable, no UTF-8 name).
    """
    if not results_dir.is_dir():
        raise NotFound("seal refused", str(results_dir), expected="a results folder")
    _check_entries(entries, job, run_id)
    _remove_leftovers(results_dir)
    write_ledger(results_dir, entries)
    write_atomic(results_dir / "verify.py", Path(verify.__file__).read_bytes())
    write_atomic(results_dir / verify.PUBLIC_KEY, key.public_pem)
    files = sealable_entries(results_dir, skip=(verify.SEAL,))
    ledger = {"count": len(entries), "head": head(entries)}
    predicate = {"job": job, "run_id": run_id, "ledger": ledger}
    envelope = signed_statement(verify.SEAL_PREDICATE, files, predicate, key)
    write_atomic(results_dir / verify.SEAL, envelope)
    return {
        "seal": verify.SEAL,
        "sha256": sha256_bytes(envelope),
        **ledger,
        "files": len(files),
        "key_id": key.key_id,
    }


def seal_archive(archive: Path, *, job: str, run_id: str, key: SigningKey) -> dict[str, Any]:
    """Sign the archive and its sidecar: `<archive>.dsse.json` beside them, read by `verify`.

    Returns:
        `{"statement": file name, "sha256", "key_id"}`.

    Raises:
        NotFound: the archive or its sidecar `<archive>.json` is missing.
    """
    names = {archive.name, archive.name + ".json"}
    missing = [name for name in sorted(names) if not archive.with_name(name).is_file()]
    if missing:
        raise NotFound(
            "archive not sealed", str(archive.with_name(missing[0])), found="nothing", exit_code=1
        )
    parts = [verify.describe(name, str(archive.with_name(name))) for name in sorted(names)]
    predicate = {"job": job, "run_id": run_id}
    envelope = signed_statement(verify.ARCHIVE_PREDICATE, parts, predicate, key)
    target = archive.with_name(archive.name + ".dsse.json")
    write_atomic(target, envelope)
    return {"statement": target.name, "sha256": sha256_bytes(envelope), "key_id": key.key_id}


def sealable_entries(results_dir: Path, skip: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Manifest entries of everything in a results folder, sorted by path.

    Raises:
        GuardRefused: something in it has no digest or no UTF-8 name; all such are named.
    """
    entries = verify.scan_folder(str(results_dir), skip)
    faults = [f"{entry['path']!r}: {entry['error']}" for entry in entries if "error" in entry]
    for entry in entries:
        try:
            (entry["path"] + entry.get("link", "")).encode("utf-8")
        except UnicodeEncodeError:
            faults.append(f"{entry['path']!r}: name or link target is not UTF-8")
    if faults:
        raise GuardRefused(
            "results folder refused",
            str(results_dir),
            expected="readable files and links",
            found=faults[0],
            hint="remove or rename it",
            details=faults,
        )
    return entries


def _check_entries(entries: Sequence[Mapping[str, Any]], job: str, run_id: str) -> None:
    broken = check_chain(entries)
    if broken:
        raise EvidenceMismatch(
            "seal refused",
            f"ledger of {job}/{run_id}",
            expected=broken[0]["expected"],
            found=broken[0]["found"],
            hint="the ledger was changed: restore it from its backup",
            details=[f"expected {item['expected']}, found {item['found']}" for item in broken],
        )
    for entry in entries:
        if (entry.get("job"), entry.get("run_id")) != (job, run_id):
            raise EvidenceMismatch(
                "seal refused",
                f"ledger entry {entry.get('seq')}",
                expected=f"{job}/{run_id}",
                found=f"{entry.get('job')}/{entry.get('run_id')}",
            )


def _remove_leftovers(results_dir: Path) -> None:
    """Half-written files of a seal that was killed; `write_atomic` names them `.NAME.xxxx`."""
    for name in (verify.LEDGER, "verify.py", verify.PUBLIC_KEY, verify.SEAL):
        target = results_dir / name
        for leftover in target.parent.glob(f".{target.name}.*"):
            leftover.unlink()
