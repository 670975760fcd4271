from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from remote.agent.errors import AgentError
from remote.agent.layout import Layout

Ask = Callable[..., dict[str, Any]]


def test_digest_reads_back(ask: Ask, layout: Layout) -> None:
    """Size and digest of what is there; null for what is absent or a folder."""
    layout.models.mkdir(parents=True)
    there, absent = str(layout.models / "a b"), str(layout.models / "none")
    (layout.models / "a b").write_bytes(b"xyz")
    files = ask("digest", paths=[there, absent, str(layout.models)])["evidence"]["files"]
    assert files[there] == {"bytes": 3, "sha256": hashlib.sha256(b"xyz").hexdigest()}
    assert files[absent] is None
    assert files[str(layout.models)] is None


@pytest.mark.parametrize(("paths", "kind"), [("x", "usage"), (["/etc/passwd"], "guard_refused")])
def test_digest_refuses(ask: Ask, paths: object, kind: str) -> None:
    """No list, or a path outside the data root."""
    with pytest.raises(AgentError) as caught:
        ask("digest", paths=paths)
    assert caught.value.kind == kind
