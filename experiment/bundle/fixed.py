"""What never enters a payload unless asked for, and what never enters at all.

The lists are those of the interface page and bind. Names are compared as they stand; only the
suffixes of weights in any case.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

Reason = Literal["ignored", "fixed", "weights", "option"]

FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".secrets",
        "venv",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        "node_modules",
        "wandb",
    }
)
ROOT_FOLDERS = frozenset({"logs", "state", "outputs", "output"})
KEYS = ("*.pem", "*.key", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
ENV_SAMPLES = frozenset({".env.example", ".env.sample", ".env.template"})
WEIGHTS = (".bin", ".ckpt", ".gguf", ".onnx", ".pt", ".pth", ".safetensors")
# The payload's own folder: agent, trainers and probes. A project's own one would be mixed up.
OWN_FOLDER = ".autodl"


def never(path: str) -> bool:
    """True for what not even `include` brings in: .git, .env, private keys, our own folder."""
    parts = path.split("/")
    name = parts[-1]
    if ".git" in parts or parts[0] == OWN_FOLDER:
        return True
    if name == ".env" or (name.startswith(".env.") and name not in ENV_SAMPLES):
        return True
    return any(fnmatchcase(name, pattern) for pattern in KEYS)


def is_weights(path: str) -> bool:
    """True for the suffixes that model weights have."""
    return path.lower().endswith(WEIGHTS)


def folder_left_out(path: str) -> bool:
    """True for a folder that is left out whole."""
    name = path.rsplit("/", 1)[-1]
    if name in FOLDERS or name.startswith(".venv"):
        return True
    return path in ROOT_FOLDERS or path == OWN_FOLDER


def file_left_out(path: str) -> Reason | None:
    """Why a file is left out by its own name, or None."""
    if never(path) or path.rsplit("/", 1)[-1] == ".DS_Store":
        return "fixed"
    return "weights" if is_weights(path) else None
