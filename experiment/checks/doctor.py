"""`charter doctor`: what this machine has for a controller, each finding with its fix.

FAIL is for what stops a run here; what only some uses need is SKIP when it is missing.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from experiment.checks.outcome import Outcome, Status
from experiment.errors import CharterError, NotFound
from experiment.ledger.database import Database
from experiment.paths import Home
from experiment.providers import local_box

CLONE = Path(__file__).resolve().parents[2]
MIN_PYTHON = (3, 11)
MIN_FREE_GIB = 2
COMMAND_SECONDS = 10.0
BASE_PACKAGES = ("torch", "trl", "transformers", "peft")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Where system packages put programs that are not on an ordinary user's PATH.
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/opt/homebrew/sbin")
POSTGRES_FOLDERS = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin")


def examine(home: Home) -> list[Outcome]:
    """Every check of this machine and of the home, in the order they are worth reading."""
    return [
        python(),
        disk(home),
        ledger(home),
        key_modes(home),
        base_environment(os.environ),
        program("sshd", find_program("sshd"), "provider `local` (runs without SSH until then)"),
        program("ssh", find_program("ssh"), "`charter ssh`"),
        program("git", find_program("git"), "working on Charter itself"),
        program("postgres", find_postgres("initdb"), "the tests of a team's shared ledger"),
        program("chromium", find_first(*BROWSERS), "the tests of the dashboard's form"),
        program("seaweedfs", find_seaweedfs(), "the tests of the S3 store"),
    ]


def python() -> Outcome:
    found = ".".join(str(part) for part in sys.version_info[:3])
    expected = f"{MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer"
    if sys.version_info < MIN_PYTHON:
        fix = "install a newer Python, then set up again"
        return Outcome("python", Status.FAIL, found, expected, fix)
    return Outcome("python", Status.PASS, f"{found} at {sys.executable}", expected)


def disk(home: Home) -> Outcome:
    """Free space where the home is, or will be."""
    place = home.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / (1 << 30)
    expected = f"{MIN_FREE_GIB} GiB free"
    text = f"{free:.1f} GiB free at {place}"
    if free < MIN_FREE_GIB:
        fix = "free some space, or set CHARTER_HOME to a folder on a larger disk"
        return Outcome("disk", Status.FAIL, text, expected, fix)
    return Outcome("disk", Status.PASS, text, expected)


def ledger(home: Home) -> Outcome:
    """Whether the ledger opens with this Charter; a home without one is fine."""
    database = None
    try:
        database = Database(home.ledger_url)
        if database.sqlite_path is not None and not database.sqlite_path.exists():
            return Outcome("ledger", Status.SKIP, "none yet", "", "the first run makes it")
        database.prepare()
    except CharterError as error:
        return Outcome("ledger", Status.FAIL, error.line(), "a ledger that opens", error.hint)
    except Exception as error:  # noqa: BLE001 - a driver may raise anything; that is the finding
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fix = "check CHARTER_LEDGER_URL, or restore the newest backup beside the ledger"
        return Outcome("ledger", Status.FAIL, text, "a ledger that opens", fix)
    finally:
        if database is not None:
            database.close()
    return Outcome("ledger", Status.PASS, str(database.sqlite_path or "PostgreSQL"), "")


def key_modes(home: Home) -> Outcome:
    """Private keys and passwords that others on this machine could read."""
    private = [home.server / "api-password"]
    private += [path for path in home.keys.rglob("*") if path.suffix != ".pub"]
    present = [path for path in private if path.exists()]
    if not present:
        return Outcome("keys", Status.SKIP, "none yet", "", "the first run makes them")
    open_ones = [path for path in present if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        fix = "chmod -R go-rwx " + " ".join(str(path) for path in open_ones)
        text = ", ".join(str(path) for path in open_ones) + " open to others"
        return Outcome("keys", Status.FAIL, text, "for their owner only", fix)
    return Outcome("keys", Status.PASS, f"{len(present)} private, for their owner only", "")


def base_environment(environ: Mapping[str, str]) -> Outcome:
    """The environment whose torch and trl the jobs of provider `local` use."""
    name = "base environment"
    expected = "a Python with " + ", ".join(BASE_PACKAGES)
    fix = "`make setup` builds it, or name another in CHARTER_LOCAL_BASE"
    try:
        folder = local_box.base_environment(CLONE, environ)
    except NotFound as error:
        return Outcome(name, Status.FAIL, error.line(), expected, fix)
    version = _output([str(folder / "bin" / "python3"), "--version"])
    if version is None:
        return Outcome(name, Status.FAIL, f"no Python starts in {folder}", expected, fix)
    packages = _packages(folder)
    missing = [package for package in BASE_PACKAGES if package not in packages]
    text = ", ".join([version, *(f"{each} {packages[each]}" for each in sorted(packages))])
    if missing:
        text = f"{text} in {folder} without {', '.join(missing)}"
        return Outcome(name, Status.FAIL, text, expected, fix)
    return Outcome(name, Status.PASS, text, expected)


def program(name: str, path: str | None, purpose: str) -> Outcome:
    """Something optional: SKIP, with what it is for, when it is not there."""
    if path is None:
        return Outcome(name, Status.SKIP, "not installed", "", f"install it for {purpose}")
    return Outcome(name, Status.PASS, path)


def find_program(name: str) -> str | None:
    """Where a program is, also in the system folders that an ordinary PATH leaves out."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_FOLDERS])
    return shutil.which(name, path=path)


def find_postgres(name: str) -> str | None:
    """One of PostgreSQL's programs; Debian keeps them off the PATH, a folder a version."""
    found = [
        str(path)
        for pattern in POSTGRES_FOLDERS
        for path in Path("/").glob(f"{pattern[1:]}/{name}")
    ]
    return shutil.which(name) or (max(found) if found else None)


def _packages(environment: Path) -> dict[str, str]:
    folders = environment.glob("lib/python3*/site-packages")
    found: Iterable[metadata.Distribution] = metadata.distributions(
        path=[str(folder) for folder in folders]
    )
    versions = {each.name.lower(): each.version for each in found if each.name}
    return {name: versions[name] for name in BASE_PACKAGES if name in versions}


def find_seaweedfs() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else find_program("weed")


def find_first(*names: str) -> str | None:
    return next((path for name in names if (path := find_program(name))), None)


def _output(argv: list[str]) -> str | None:
    """What a program prints, None when it fails, hangs or is not there."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr).strip()
