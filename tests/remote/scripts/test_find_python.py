from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "remote" / "scripts" / "find-python.sh"


def _find(path: str) -> subprocess.CompletedProcess[str]:
    """Run as the hosts do: the script comes on stdin."""
    return subprocess.run(
        ["/bin/sh", "-s"],
        input=SCRIPT.read_text(),
        capture_output=True,
        text=True,
        env={"PATH": path},
        timeout=30,
        check=False,
    )


def _program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_the_first_usable_python_is_named_in_full(tmp_path: Path) -> None:
    """An old or broken python3 is passed over; folders with spaces and $ are fine."""
    _program(tmp_path / "old", "python3", "#!/bin/sh\nexit 1\n")
    _program(tmp_path / "broken", "python3", "no program\n")
    good = tmp_path / "a $b 'c"
    good.mkdir()
    (good / "python").symlink_to(sys.executable)
    done = _find(f"{tmp_path / 'old'}:{tmp_path / 'broken'}:{good}")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    found = done.stdout.strip()
    assert Path(found).is_absolute()
    asked = [found, "-c", "import sys; print(sys.version_info >= (3, 8))"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "True\n"


def test_none_exits_127_with_one_line(tmp_path: Path) -> None:
    """Nothing on stdout; one line says what was looked for."""
    if any(
        Path(path).exists() for path in ("/root/miniconda3/bin/python", "/opt/conda/bin/python")
    ):
        import pytest

        pytest.skip("this machine has a conda Python in a usual place")
    done = _find(str(tmp_path))
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.count("\n") == 1
    assert "3.8" in done.stderr


def test_the_script_is_valid_shell() -> None:
    """`sh -n` and `bash -n` read it."""
    for shell in ("sh", "bash"):
        subprocess.run([shell, "-n", str(SCRIPT)], check=True)
