from __future__ import annotations

import pytest

from remote.agent.globs import matches

CASES = [
    ("summary.json", "summary.json", True),
    ("summary.json", "deep/er/summary.json", True),
    ("/summary.json", "deep/summary.json", False),
    ("model", "model/config.json", True),
    ("model/", "model/a/b", True),
    ("model", "models/config.json", False),
    ("*.pt", "checkpoints/a.pt", True),
    ("checkpoints/*", "checkpoints/1/a.pt", True),
    ("checkpoints/*.pt", "checkpoints/1/a.pt", False),
    ("checkpoints/**/*.pt", "checkpoints/a.pt", True),
    ("checkpoints/**/*.pt", "checkpoints/1/2/a.pt", True),
    ("**", "anything/at/all", True),
    ("a?c", "abc", True),
    ("a?c", "a/c", False),
    ("a.c", "abc", False),
    ("(x)[1]", "(x)[1]", True),
]


@pytest.mark.parametrize(("pattern", "path", "fits"), CASES)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    """One meaning of patterns for what is collected and what is required."""
    assert matches(pattern, path) is fits
