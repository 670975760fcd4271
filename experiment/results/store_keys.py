"""Where in a store something lies: contents by digest, a run's index by its name."""

from __future__ import annotations


def digest_key(sha256: str) -> str:
    """`sha256/ab/<digest>`.

    Raises:
        ValueError: not 64 lower-case hexadecimal digits.
    """
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"no SHA-256 in hexadecimal: {sha256!r}")
    return f"sha256/{sha256[:2]}/{sha256}"


def index_key(job: str, run_id: str) -> str:
    """`runs/<job>/<run_id>.json`."""
    return f"runs/{job}/{run_id}.json"
