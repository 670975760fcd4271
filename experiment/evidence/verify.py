#!/usr/bin/env python3
"""Check a Charter results folder or archive: offline, with no server and nothing of Charter.

    python verify.py [PATH] [--key PUB] [--json]

PATH is a results folder (default: the folder this file lies in) or `<job>-results.tar.gz` beside
its sidecar `<archive>.json`. Needs Python 3.8 and the package `cryptography`. The answer is one
JSON object on stdout, `{"ok", "checked", "broken": [{"path", "link", "expected", "found"}],
"signer": {"key_id", "pinned"}}`; remarks for people go to stderr (none with --json).
Exit: 0 whole, 2 something is broken, 3 PATH is missing, 1 the --key file is unusable, 64 usage.

This copy in a results folder never vouches for itself: whoever changed the folder could have
changed it too. Use your own copy, or `charter verify`; and only a key you pin (`--key`) proves
who sealed it.

`link` says which link of the evidence is broken: file (bytes, exec bit, link target, missing),
inventory, entry (ledger chain), statement, signature, seal, unlisted. One file, longer than the
house's habit, because it is copied alone.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import stat
import sys
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import (
    Any,
    Container,
    Dict,
    Iterable,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

FIRST_PREV = "0" * 64
SEAL = "evidence/seal.dsse.json"
PUBLIC_KEY = "evidence/signer.pub"
LEDGER = "ledger.jsonl"
INVENTORY = "artifact_inventory.json"
# The controller's own files in a results folder. A run may have written one of the same name: the
# archive keeps the run's, the folder holds the controller's, and the seal covers both.
CONTROLLER_FILES = ("contract.yaml", LEDGER, "manifest.json", "report.html", "verify.py")
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SEAL_PREDICATE = "urn:charter:predicate:seal:v1"
ARCHIVE_PREDICATE = "urn:charter:predicate:archive:v1"

_SPKI_ED25519 = bytes.fromhex("302a300506032b6570032100")
_CHUNK = 1 << 20

Entry = Dict[str, Any]
Broken = Dict[str, str]


class VerifyError(Exception):
    """Nothing could be checked; `kind`, `hint` and `exit_code` are those of Charter's errors."""

    def __init__(self, kind: str, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message)
        self.kind, self.hint, self.exit_code = kind, hint, exit_code

    def as_json(self) -> Dict[str, Any]:
        """The object printed under `error`."""
        message = str(self) + ("; " + self.hint if self.hint else "")
        return {
            "kind": self.kind,
            "message": message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


def verify_path(path: Any, pub: Any = None, known_keys: Iterable[Any] = ()) -> Dict[str, Any]:
    """Check a results folder, or an archive with its sidecar.

    Args:
        path: the folder, or the `.tar.gz`.
        pub: a public key file (PEM, Ed25519) that must be the signer's; pins it.
        known_keys: public key files that merely decide whether the signer is called pinned.

    Returns:
        `{"ok", "checked", "broken": [...], "signer": {"key_id", "pinned"}}`; `checked` counts
        files, inventory and ledger entries and envelopes looked at.

    Raises:
        VerifyError: the path does not exist (exit 3), or a key file is unusable (exit 1).
    """
    root = os.path.abspath(os.fspath(path))
    if not os.path.exists(root):
        raise VerifyError("not_found", f"nothing to verify: {path}", "name a results folder", 3)
    wanted = load_public_key(pub) if pub else None
    known = {key_id(load_public_key(known_key)) for known_key in known_keys}
    if wanted:
        known.add(key_id(wanted))
    check = _Check(wanted, known)
    if os.path.isdir(root):
        check.folder(root)
    else:
        check.archive(root)
    return check.answer()


# The rules that the writing side repeats: a test holds both equal.


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN: the one form that is hashed and signed.

    Raises:
        ValueError: NaN, infinity, or text that is not Unicode.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def check_chain(entries: Sequence[Mapping[str, Any]]) -> List[Broken]:
    """Broken links of a ledger chain: digests, predecessors, contiguous `seq`."""
    broken: List[Broken] = []
    previous = FIRST_PREV
    expected = entries[0].get("seq") if entries else None
    for entry in entries:
        seq = entry.get("seq")
        if type(seq) is not int or seq != expected:
            broken.append(_fault(LEDGER, "entry", f"entry {expected}", f"entry {seq}"))
        if entry.get("prev_sha256") != previous:
            found = f"entry {seq} after {entry.get('prev_sha256')}"
            broken.append(_fault(LEDGER, "entry", f"entry {seq} after {previous}", found))
        try:
            digest = _sha256(canonical_json({k: v for k, v in entry.items() if k != "sha256"}))
        except (ValueError, TypeError, RecursionError) as error:
            digest = f"no canonical form: {error}"
        if entry.get("sha256") != digest:
            told = f"entry {seq} with digest {entry.get('sha256')}"
            broken.append(_fault(LEDGER, "entry", told, digest))
        previous = str(entry.get("sha256"))
        expected = seq + 1 if type(seq) is int else expected
    return broken


def scan_folder(
    root: str, skip: Container[str] = (), only: Optional[Container[str]] = None
) -> List[Entry]:
    """Every file and link below a folder, hashed by several threads, sorted by path.

    Args:
        root: the folder.
        skip: paths to leave out.
        only: when given, the only paths that are read and returned.

    Returns:
        `{"path", "bytes", "sha256", "mode": "644"|"755"}` for a file, `{"path", "link"}` for a
        symbolic link (never followed), `{"path", "error"}` for what is neither or can't be read.
    """
    found: List[Tuple[str, str]] = []
    _walk(root, "", found)
    jobs = [
        item for item in sorted(found) if item[0] not in skip and (only is None or item[0] in only)
    ]
    # hashlib lets go of the interpreter lock, so threads really hash at the same time.
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda job: describe(*job), jobs))


def key_id(raw: bytes) -> str:
    """Hex SHA-256 of the DER form (`openssl pkey -pubin -outform der | sha256sum`)."""
    return _sha256(_SPKI_ED25519 + raw)


def load_public_key(path: Any) -> bytes:
    """The 32 raw bytes of an Ed25519 public key in a PEM file.

    Raises:
        VerifyError: the file is absent or holds no such key (exit 1).
    """
    hint = "name a PEM file with an Ed25519 public key"
    try:
        with open(path, "rb") as handle:
            lines = handle.read(65536).decode("ascii").strip().splitlines()
        der = base64.b64decode("".join(lines[1:-1]), validate=True)
    except OSError as error:
        message = f"public key not readable: {path}: {error.strerror}"
        raise VerifyError("not_found", message, hint, 1) from error
    except ValueError as error:
        raise VerifyError("usage", f"no public key: {path}: {error}", hint, 1) from error
    if lines[:1] != ["-----BEGIN PUBLIC KEY-----"] or der[:-32] != _SPKI_ED25519:
        raise VerifyError("usage", f"no Ed25519 public key: {path}", hint, 1)
    return der[-32:]


class _Check:
    """One verification: what was looked at, what is broken, who signed."""

    def __init__(self, wanted: Optional[bytes], known: Iterable[str]) -> None:
        self.wanted = wanted
        self.known = set(known)
        self.checked = 0
        self.broken: List[Broken] = []
        self.signer: Optional[str] = None

    def answer(self) -> Dict[str, Any]:
        pinned = self.signer is not None and self.signer in self.known
        return {
            "ok": not self.broken,
            "checked": self.checked,
            "broken": self.broken,
            "signer": {"key_id": self.signer, "pinned": pinned},
        }

    def fault(self, path: str, link: str, expected: Any, found: Any) -> None:
        self.broken.append(_fault(path, link, expected, found))

    # A results folder.

    def folder(self, root: str) -> None:
        present = {entry["path"]: entry for entry in scan_folder(root, skip=(SEAL,))}
        self.checked += len(present)
        statement = self.envelope(os.path.join(root, *SEAL.split("/")), SEAL, SEAL_PREDICATE)
        sealed = self.subjects(statement, SEAL) if statement else None
        if sealed is not None:
            self.compare(sealed, present)
        self.inventory_of_folder(root, present)
        self.ledger(root, present, statement)

    def compare(self, sealed: Dict[str, Entry], present: Dict[str, Entry]) -> None:
        for path in sorted(set(sealed) | set(present)):
            if path not in sealed:
                self.fault(path, "unlisted", "no such file", _told(present[path]))
                continue
            expected, found = difference(sealed[path], present.get(path))
            if expected != found:
                self.fault(path, "file", expected, found)

    def inventory_of_folder(self, root: str, present: Dict[str, Entry]) -> None:
        """Only what the seal has not named already: the same file is not accused twice."""
        if "sha256" not in present.get(INVENTORY, {}):
            return
        accused = {item["path"] for item in self.broken}
        with open(os.path.join(root, INVENTORY), "rb") as handle:
            listed = self.inventory(handle.read())
        if INVENTORY in accused:
            return  # a changed inventory cannot accuse others
        for path, entry in listed.items():
            if path in CONTROLLER_FILES or path.startswith("evidence/"):
                continue
            expected, found = difference(entry, present.get(path))
            if expected != found and path not in accused:
                self.fault(path, "inventory", expected, found)

    def inventory(self, data: bytes) -> Dict[str, Entry]:
        """The inventory's entries by path; its own faults are recorded."""
        try:
            listed = read_inventory(data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.fault(INVENTORY, "inventory", "a list of files with hashes", _why(error))
            return {}
        self.checked += len(listed)
        return listed

    def ledger(
        self, root: str, present: Dict[str, Entry], statement: Optional[Dict[str, Any]]
    ) -> None:
        if "sha256" not in present.get(LEDGER, {}):
            return
        with open(os.path.join(root, LEDGER), "rb") as handle:
            entries = self.ledger_lines(handle.read())
        self.checked += len(entries)
        self.broken.extend(check_chain(entries))
        if statement is None:
            return
        head = entries[-1].get("sha256") if entries else FIRST_PREV
        found = {"count": len(entries), "head": head}
        expected = statement["predicate"].get("ledger")
        if expected != found:
            self.fault(LEDGER, "seal", _short(expected), _short(found))

    def ledger_lines(self, data: bytes) -> List[Entry]:
        entries: List[Entry] = []
        lines = data.split(b"\n")
        if lines.pop():
            self.fault(LEDGER, "entry", "a newline at the end", "a line cut short")
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line.decode("utf-8"))
                if not isinstance(entry, dict):
                    raise ValueError("not an object")
                entries.append(entry)
            except (ValueError, RecursionError) as error:
                self.fault(LEDGER, "entry", f"line {number}: an entry", _why(error))
        return entries

    # A signed statement.

    def envelope(self, path: str, name: str, predicate: str) -> Optional[Dict[str, Any]]:
        """The statement inside a DSSE envelope, or None when it may not be believed."""
        self.checked += 1
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IXUSR:
                self.fault(name, "seal", "a plain file, mode 644", f"mode {status.st_mode:o}")
                return None
            with open(path, "rb") as handle:
                data = handle.read()
        except OSError as error:
            self.fault(name, "seal", "a readable envelope", error.strerror or "unreadable")
            return None
        try:
            payload, keyid, signature = open_envelope(data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.fault(name, "seal", "a DSSE envelope in canonical bytes", _why(error))
            return None
        try:
            statement, raw = open_statement(payload, predicate)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.fault(name, "statement", "an in-toto statement, " + predicate, _why(error))
            return None
        signer = key_id(raw)
        if keyid != signer:
            self.fault(name, "signature", "a signature by " + signer, "one by " + keyid)
            return None
        refused = signature_fault(raw, signature, payload)
        if refused:
            self.fault(name, "signature", "a signature by " + signer, refused)
            return None
        self.signer = signer
        if self.wanted is not None and self.wanted != raw:
            self.fault(name, "signature", "a signature by " + key_id(self.wanted), signer)
        return statement

    def subjects(self, statement: Dict[str, Any], name: str) -> Optional[Dict[str, Entry]]:
        """What a statement is about, by path, in the form of `scan_folder`'s entries."""
        listed: Dict[str, Entry] = {}
        try:
            for subject in statement["subject"]:
                notes = subject["annotations"]
                digest = subject["digest"]["sha256"]
                if "link" in notes:
                    entry = {"link": notes["link"]}
                else:
                    entry = {"sha256": digest, "bytes": notes["bytes"], "mode": notes["mode"]}
                listed[subject["name"]] = entry
        except (TypeError, KeyError) as error:
            self.fault(name, "statement", "subjects with name and digest", _why(error))
            return None
        return listed

    # An archive with its sidecar.

    def archive(self, path: str) -> None:
        name = os.path.basename(path)
        sidecar, envelope = name + ".json", name + ".dsse.json"
        around = os.path.dirname(path)
        parts = {part: describe(part, os.path.join(around, part)) for part in (name, sidecar)}
        self.checked += 2
        if os.path.lexists(os.path.join(around, envelope)):
            statement = self.envelope(os.path.join(around, envelope), envelope, ARCHIVE_PREDICATE)
            sealed = self.subjects(statement, envelope) if statement else None
            for part in parts:
                expected, found = difference((sealed or {}).get(part, parts[part]), parts[part])
                if expected != found:
                    self.fault(part, "file", expected, found)
        elif self.wanted is not None:
            self.fault(envelope, "signature", "a signature by " + key_id(self.wanted), "missing")
        if self.broken:
            return
        told = self.sidecar(os.path.join(around, sidecar), sidecar, name)
        if told is None:
            return
        expected, found = difference(told, parts[name])
        if expected != found:
            self.fault(name, "file", expected, found)
        within = len(self.broken)
        inventory = self.members(path, name)
        if expected != found and len(self.broken) == within:
            # The archive is whole inside, so that the sidecar may be the one that was changed.
            self.fault(sidecar, "file", "the digest of an archive that is whole", expected)
        if inventory is not None and told["inventory_sha256"] not in (None, inventory):
            self.fault(sidecar, "inventory", inventory, told["inventory_sha256"])

    def sidecar(self, path: str, sidecar: str, name: str) -> Optional[Entry]:
        """What the sidecar says of its archive; None, and a fault, when it can't be believed."""
        try:
            with open(path, "rb") as handle:
                data = handle.read()
            told = json.loads(data.decode("utf-8"))
            if data not in (canonical_json(told), _indented(told)):
                raise ValueError("other bytes than the canonical ones")
            if told["status"] != "packaged" or os.path.basename(told["archive"]) != name:
                raise ValueError(f"{told['status']}, {told['archive']}")
            inventory = told["inventory"]
            if not isinstance(inventory, dict):
                inventory = {"path": inventory, "sha256": told.get("inventory_sha256")}
            if os.path.basename(inventory["path"]) != INVENTORY:
                raise ValueError(f"inventory {inventory['path']}")
            return {
                "bytes": told["archive_bytes"],
                "sha256": told["archive_sha256"],
                "inventory_sha256": inventory["sha256"],
            }
        except OSError as error:
            self.fault(sidecar, "file", "the sidecar of " + name, error.strerror or "unreadable")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.fault(sidecar, "file", "the sidecar of " + name, _why(error))
        return None

    def members(self, path: str, name: str) -> Optional[str]:
        """Hash what is packed against the packed inventory, without unpacking it to disk."""
        present: Dict[str, Entry] = {}
        inventory = b""
        try:
            with tarfile.open(path, "r|gz") as tar:
                for member in tar:
                    if member.isdir():
                        continue
                    inner = member.name[2:] if member.name.startswith("./") else member.name
                    if inner in present:
                        self.fault(inner, "unlisted", "a path once", "twice")
                    present[inner], data = _member(tar, member, inner == INVENTORY)
                    inventory = data or inventory
        except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
            self.fault(name, "file", "an archive that opens", _why(error))
            return None
        self.checked += len(present)
        if INVENTORY not in present:
            self.fault(INVENTORY, "inventory", "an inventory in the archive", "missing")
            return None
        listed = self.inventory(inventory)
        for inner in sorted(set(listed) | set(present) - {INVENTORY}):
            if inner not in listed:
                self.fault(inner, "unlisted", "no such file", _told(present[inner]))
                continue
            expected, found = difference(listed[inner], present.get(inner))
            if expected != found:
                self.fault(inner, "inventory", expected, found)
        return _sha256(inventory)


def read_inventory(data: bytes) -> Dict[str, Entry]:
    """The entries of an `artifact_inventory.json` by path.

    Raises:
        ValueError, TypeError, KeyError: no list of files with hashes, a path twice or outside.
    """
    files = json.loads(data.decode("utf-8"))["files"]
    listed = {str(entry["path"]): dict(entry) for entry in files}
    if len(listed) != len(files):
        raise ValueError("the same path twice")
    for path, entry in listed.items():
        if "sha256" not in entry and "link" not in entry:
            raise ValueError(f"{path}: no sha256")
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path}: outside the folder")
    return listed


def open_envelope(data: bytes) -> Tuple[bytes, str, bytes]:
    """Payload, key id and signature of a DSSE envelope with one signature.

    Raises:
        ValueError, TypeError, KeyError: no such envelope, or not in its canonical bytes.
    """
    envelope = json.loads(data.decode("utf-8"))
    (signed,) = envelope["signatures"]
    payload = base64.b64decode(envelope["payload"], validate=True)
    signature = base64.b64decode(signed["sig"], validate=True)
    # Written anew from what was understood: nothing else can hide in the bytes.
    canonical = canonical_json(
        {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {
                    "keyid": signed["keyid"],
                    "sig": base64.b64encode(signature).decode("ascii"),
                }
            ],
        }
    )
    if canonical != data:
        raise ValueError("other bytes than the canonical ones")
    return payload, str(signed["keyid"]), signature


def open_statement(payload: bytes, predicate: str) -> Tuple[Dict[str, Any], bytes]:
    """The statement and the raw public key that it names as its signer's.

    Raises:
        ValueError, TypeError, KeyError: no such statement, or not in its canonical bytes.
    """
    statement = json.loads(payload.decode("utf-8"))
    if canonical_json(statement) != payload:
        raise ValueError("other bytes than the canonical ones")
    if statement["_type"] != STATEMENT_TYPE or statement["predicateType"] != predicate:
        raise ValueError(f"{statement['_type']}, {statement['predicateType']}")
    raw = bytes.fromhex(statement["predicate"]["signer"]["public_key"])
    if len(raw) != 32 or not isinstance(statement["subject"], list):
        raise ValueError("no 32-byte key, or no list of subjects")
    return dict(statement), raw


def signature_fault(raw: bytes, signature: bytes, payload: bytes) -> str:
    """Empty when the Ed25519 signature over the payload (DSSE's PAE) holds, else why not."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return "not checked: pip install cryptography"
    kind = PAYLOAD_TYPE.encode("ascii")
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except (InvalidSignature, ValueError):
        return "one that does not hold"
    return ""


def _walk(folder: str, prefix: str, found: List[Tuple[str, str]]) -> None:
    try:
        with os.scandir(folder) as listing:
            for item in listing:
                if item.is_dir(follow_symlinks=False):
                    _walk(item.path, prefix + item.name + "/", found)
                else:
                    found.append((prefix + item.name, item.path))
    except OSError:
        found.append((prefix.rstrip("/") or ".", folder))


def describe(name: str, path: str) -> Entry:
    """One entry of `scan_folder`; an absent file is `{"path", "error": "missing"}`."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return {"path": name, "link": os.readlink(path)}
        if not stat.S_ISREG(status.st_mode):
            return {"path": name, "error": "neither file nor link"}
        with open(path, "rb") as handle:
            size, digest = _hash(handle)
    except FileNotFoundError:
        return {"path": name, "error": "missing"}
    except OSError as error:
        return {"path": name, "error": f"unreadable: {error.strerror}"}
    mode = "755" if status.st_mode & stat.S_IXUSR else "644"
    return {"path": name, "bytes": size, "sha256": digest, "mode": mode}


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, keep: bool) -> Tuple[Entry, bytes]:
    if member.issym():
        return {"link": member.linkname}, b""
    handle = tar.extractfile(member) if member.isreg() else None
    if handle is None:
        return {"error": "neither file nor link"}, b""
    mode = "755" if member.mode & stat.S_IXUSR else "644"
    if keep:
        data = handle.read()
        return {"bytes": len(data), "sha256": _sha256(data), "mode": mode}, data
    size, digest = _hash(handle)
    return {"bytes": size, "sha256": digest, "mode": mode}, b""


def _hash(handle: Any) -> Tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while True:
        chunk = handle.read(_CHUNK)
        if not chunk:
            return size, digest.hexdigest()
        digest.update(chunk)
        size += len(chunk)


def _indented(value: Any) -> bytes:
    """The form in which Charter writes JSON for people; as exact as the canonical one."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def difference(expected: Entry, found: Optional[Entry]) -> Tuple[str, str]:
    """The first thing that differs, told for people; two equal texts when nothing does."""
    if found is None:
        return _told(expected), "missing"
    if "error" in found or "link" in expected or "link" in found:
        return _told(expected), _told(found)
    for key in ("sha256", "bytes", "mode"):
        if key in expected and str(expected[key]) != str(found.get(key)):
            label = "" if key == "sha256" else key + " "
            return label + str(expected[key]), label + str(found.get(key))
    return "", ""


def _told(entry: Entry) -> str:
    if "link" in entry:
        return f"link to {entry['link']}"
    return str(entry.get("error") or entry.get("sha256"))


def _short(ledger: Any) -> str:
    if not isinstance(ledger, dict):
        return str(ledger)
    return f"{ledger.get('count')} entries, head {ledger.get('head')}"


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _fault(path: str, link: str, expected: Any, found: Any) -> Broken:
    return {"path": path, "link": link, "expected": str(expected), "found": str(found)}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise VerifyError("usage", message, "python verify.py [PATH] [--key PUB] [--json]", 64)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    here = os.path.dirname(os.path.abspath(__file__))
    parser = _Parser(prog="verify.py", description="Check a Charter results folder or archive.")
    parser.add_argument("path", nargs="?", default=here, help="results folder or archive")
    parser.add_argument("--key", help="public key (PEM) that must be the signer's")
    parser.add_argument("--json", action="store_true", help="no remarks on stderr")
    quiet = "--json" in argv
    try:
        given = parser.parse_args(list(argv))
        result = verify_path(given.path, given.key)
    except VerifyError as error:
        print(json.dumps({"error": error.as_json()}))
        if not quiet:
            print(f"error: {error.as_json()['message']}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(result))
    if not quiet:
        _remarks(result)
    return 0 if result["ok"] else 2


def _remarks(result: Mapping[str, Any]) -> None:
    for item in result["broken"]:
        line = "broken: {path} ({link}): expected {expected}, found {found}".format(**item)
        print(line, file=sys.stderr)
    signer = result["signer"]
    whose = "pinned" if signer["pinned"] else "not pinned: this proves no origin"
    verdict = "whole" if result["ok"] else "BROKEN"
    told = f"{verdict}: {result['checked']} checked, signer {signer['key_id']} ({whose})"
    print(told, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
