from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.agent.environment import MARKER, requirement_files
from remote.agent.errors import AgentError
from remote.agent.files import read_json
from remote.agent.freeze import describe, packages
from remote.agent.layout import Layout

Ask = Callable[..., dict[str, Any]]
WISH: dict[str, Any] = {"kind": "venv", "name": None, "requirements": None}


def _wheel(folder: Path, name: str, value: int) -> Path:
    """A wheel of one module, written by hand: no index and no build is needed."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"VALUE = {value}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record.append(f"{member},sha256={digest.decode().rstrip('=')},{len(text)}")
            wheel.writestr(member, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


def _says(python: str, code: str) -> str:
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(layout: Layout) -> Path:
    """An unpacked project whose requirements name a wheel that lies in it."""
    folder = layout.bundles / "abc" / "project"
    folder.mkdir(parents=True)
    layout.project.symlink_to("bundles/abc/project")
    _wheel(folder, "charter_probe_pkg", 7)
    (folder / "requirements.txt").write_text("./charter_probe_pkg-1.0-py3-none-any.whl\n")
    return folder


def test_venv_sees_the_base_environment(ask: Ask, layout: Layout) -> None:
    """Even made from a venv: what the base has can be imported, and is frozen with its version."""
    evidence = ask("environment", **WISH)["evidence"]
    python = evidence["python"]
    assert Path(python).is_relative_to(layout.venv(evidence["key"]))
    assert _says(python, "import pytest; print(pytest.__version__)") == pytest.__version__
    assert f"pytest=={pytest.__version__}" in evidence["freeze"]
    assert evidence["reused"] is False
    assert "pytest==" in layout.run_root().environment.read_text()


def test_venv_is_built_once_and_shared(ask: Ask, layout: Layout) -> None:
    """Another job with the same needs gets the same venv."""
    first = ask("environment", **WISH)["evidence"]
    other = ask("environment", suffix="x", job="other", **WISH)["evidence"]
    assert other["reused"] is True
    assert (other["key"], other["python"]) == (first["key"], first["python"])
    assert other["packages_sha256"] == first["packages_sha256"]


def test_requirements_are_installed_into_the_venv(ask: Ask, layout: Layout, project: Path) -> None:
    """The package is there for the job, and not in the base."""
    evidence = ask("environment", **dict(WISH, requirements="requirements.txt"))["evidence"]
    assert evidence["requirements_installed"] is True
    assert _says(evidence["python"], "import charter_probe_pkg as p; print(p.VALUE)") == "7"
    assert "charter-probe-pkg==1.0" in evidence["freeze"]
    assert "charter-probe-pkg" not in packages()


def test_failed_requirements_leave_no_complete_venv(
    ask: Ask, layout: Layout, project: Path
) -> None:
    """pip's own error is told; there is no marker, so that the next attempt builds anew."""
    (project / "requirements.txt").write_text("./missing-1.0-py3-none-any.whl\n")
    with pytest.raises(AgentError, match=r"requirements\.txt.*exit 1.*missing") as caught:
        ask("environment", **dict(WISH, requirements="requirements.txt"))
    assert (caught.value.kind, caught.value.exit_code) == ("remote_step_failed", 1)
    assert not list(layout.venvs.glob(f"*/{MARKER}"))


def test_a_venv_without_its_marker_is_built_anew(ask: Ask, layout: Layout) -> None:
    """What a killed build left behind is not taken for complete, nor is its recorded answer."""
    evidence = ask("environment", **WISH)["evidence"]
    folder = layout.venv(evidence["key"])
    (folder / MARKER).unlink()
    (folder / "stale").write_text("x")
    again = ask("environment", **WISH)
    assert "replayed" not in again
    assert again["evidence"]["reused"] is False
    assert not (folder / "stale").exists()
    assert read_json(folder / MARKER)["key"] == evidence["key"]
    assert ask("environment", **WISH)["replayed"] is True


def test_a_broken_venv_is_built_anew(ask: Ask, layout: Layout) -> None:
    """A marker does not help when the Python is gone."""
    evidence = ask("environment", **WISH)["evidence"]
    shutil.rmtree(layout.venv(evidence["key"]) / "bin")
    again = ask("environment", **WISH)["evidence"]
    assert again["reused"] is False
    assert _says(again["python"], "print(1)") == "1"


def test_none_takes_the_base_as_it_is(ask: Ask) -> None:
    """No venv, nothing installed."""
    evidence = ask("environment", **dict(WISH, kind="none"))["evidence"]
    assert (evidence["python"], evidence["key"]) == (sys.executable, None)


def test_conda_takes_the_named_environment(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in conda's own list; with its name and nothing else."""
    prefix = tmp_path / "conda" / "envs" / "rl"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"/gone/envs/rl\n{prefix}\n")
    evidence = ask("environment", **dict(WISH, kind="conda", name="rl"))["evidence"]
    assert evidence["python"] == str(prefix / "bin" / "python")
    with pytest.raises(AgentError, match="'none-such'") as caught:
        ask("environment", suffix="x", **dict(WISH, kind="conda", name="none-such"))
    assert caught.value.exit_code == 127


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"kind": "docker"}, "usage"),
        ({"requirements": "../../x"}, "guard_refused"),
        ({"requirements": "none.txt"}, "not_found"),
        ({"kind": "conda", "name": "../x"}, "usage"),
    ],
)
def test_wrong_wishes(ask: Ask, project: Path, fields: dict[str, Any], kind: str) -> None:
    """Refused before anything is built."""
    with pytest.raises(AgentError) as caught:
        ask("environment", **dict(WISH, **fields))
    assert caught.value.kind == kind


def test_included_files_count(tmp_path: Path) -> None:
    """`-r` and `-c` are followed once, also in a circle; local installs are noticed."""
    (tmp_path / "a.txt").write_text("-r b.txt\n--constraint c.txt\nnumpy\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    (tmp_path / "c.txt").write_text("numpy<3\n")
    files, local = requirement_files(tmp_path / "a.txt")
    assert [path.name for path in files] == ["a.txt", "b.txt", "c.txt"]
    assert local is False
    (tmp_path / "b.txt").write_text("-e .\n")
    assert requirement_files(tmp_path / "a.txt")[1] is True


def test_a_python_describes_itself() -> None:
    """Executable, prefix, where it finds packages, and which."""
    found = describe()
    assert found["executable"] == sys.executable
    assert found["site_dirs"]
    assert all(os.path.isdir(path) for path in found["site_dirs"])
    assert found["packages"]["pytest"] == pytest.__version__
