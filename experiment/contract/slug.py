"""Names that are safe in paths, host names and shell lines."""

from __future__ import annotations

import re

LONGEST = 48


def slugify(text: str) -> str:
    """Lower-case, runs of anything but a-z and 0-9 as one `-`, ends stripped, 48 at most.

    Raises:
        ValueError: nothing is left.
    """
    joined = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    short = joined[:LONGEST].strip("-")
    if not short:
        raise ValueError(f"{text!r} holds no letter a-z and no digit")
    return short
