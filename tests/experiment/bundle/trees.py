"""Small project trees for the bundle's tests, made from data."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from experiment.contract import Contract
from experiment.contract.load import check_contract

# Put together here, so that no file of the project holds something shaped like a token.
TOKEN = "hf" + "_" + "abcdefghij" * 3


def grow(root: Path, files: Mapping[str, str]) -> Path:
    """Make files (path to text); a text `-> target` makes a link; a path ending in / a folder."""
    root.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text[3:])
        else:
            place.write_bytes(text.encode())
    return root


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder, free of this person's settings."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    argv = ["git", "-c", "init.defaultBranch=main", "-C", str(root), *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def contract_for(project: Path, **keys: object) -> Contract:
    """A contract for a project folder; `keys` go into its `project` section."""
    return check_contract(
        {
            "schema": 1,
            "job": "tree",
            "project": {
                "directory": str(project),
                "entry_command": "python train.py",
                "requirements": None,
                **keys,
            },
            "run": {"artifacts": ["summary.json"]},
            "billing": {"max_total": 1, "max_hours": 1, "max_price_per_hour": 1},
        },
        project.parent,
    )
