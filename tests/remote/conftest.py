"""The base environment's Python, and the example's tiny model made once for all of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from experiment.providers import local_box

CLONE = Path(__file__).parents[2]
EXAMPLE = CLONE / "examples" / "tiny-grpo"


@pytest.fixture(scope="session")
def host_python() -> str:
    """The interpreter that has torch and trl; a test that asks for it is marked host_stack."""
    return str(local_box.base_environment(CLONE, os.environ) / "bin" / "python3")


@pytest.fixture(scope="session")
def tiny_model(host_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's base model; nobody may change it."""
    folder = tmp_path_factory.mktemp("base") / "model"
    subprocess.run(
        [host_python, str(EXAMPLE / "make_model.py"), "--out", str(folder)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder
