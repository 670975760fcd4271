from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remote.agent.files import sha256_bytes
from remote.agent.layout import Layout
from remote.agent.pack import agent_sha256, build_agent, self_argv

ROOT = Path(__file__).parents[3]
BUILD = Path(__file__).parent / "cases" / "build_agent.py"


def test_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """Times, modes, another folder and another process do not matter."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "remote", copy / "remote", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (copy / "remote" / "agent").iterdir():
        os.utime(path, (1, 1))
        path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, str(BUILD), str(copy)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == sha256_bytes(build_agent()) == agent_sha256()


def test_a_packed_agent_packs_itself(tmp_path: Path) -> None:
    """From inside the zip the same bytes come out."""
    packed = tmp_path / "agent.pyz"
    packed.write_bytes(build_agent())
    done = subprocess.run(
        [sys.executable, "-I", str(BUILD), str(packed)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == agent_sha256()


def test_packed_files_are_sources_only(tmp_path: Path) -> None:
    """No byte code, no tests; the door on top."""
    packed = tmp_path / "agent.pyz"
    packed.write_bytes(build_agent())
    names = zipfile.ZipFile(packed).namelist()
    assert "__main__.py" in names
    assert "remote/agent/__main__.py" in names
    assert all(name.endswith((".py", ".json")) for name in names)


def test_self_argv_survives_the_clone(layout: Layout) -> None:
    """The agent that a step starts later lies in the data root; a damaged copy is replaced."""
    argv = self_argv(layout)
    copy = Path(argv[-1])
    assert copy.is_relative_to(layout.charter)
    copy.write_bytes(b"half")
    assert self_argv(layout) == argv
    assert copy.read_bytes() == build_agent()


@pytest.mark.parametrize("name", ["python2.7", "python3.6", "python3.7"])
def test_an_old_python_gets_one_line(name: str, tmp_path: Path) -> None:
    """Exit 69 and no traceback on a Python that can't even read the rest."""
    old = shutil.which(name)
    works = (
        old and subprocess.run([old, "-c", ""], capture_output=True, check=False).returncode == 0
    )
    if not old or not works:
        pytest.skip(f"{name} is not on this machine")
    packed = tmp_path / "agent.pyz"
    packed.write_bytes(build_agent())
    done = subprocess.run([old, str(packed)], capture_output=True, text=True, check=False)
    assert done.returncode == 69
    assert "3.8" in done.stderr
    assert "Traceback" not in done.stderr
