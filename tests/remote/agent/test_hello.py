from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from remote.agent.layout import Layout
from remote.agent.pack import agent_sha256


def test_hello_names_host_agent_and_data_root(
    ask: Callable[..., dict[str, Any]], layout: Layout
) -> None:
    """Who answers, and the data root's own name, the same at every call."""
    first = ask("hello")["evidence"]
    assert first["agent_sha256"] == agent_sha256()
    assert first["uid"] == os.getuid()
    assert first["data_root"] == os.path.realpath(layout.data_root)
    assert first["boot_id"]
    assert ask("hello")["evidence"] == first


def test_a_fresh_disk_has_another_marker(
    ask: Callable[..., dict[str, Any]], layout: Layout
) -> None:
    """A wiped data root is noticed."""
    first = ask("hello")["evidence"]["marker"]
    layout.marker.unlink()
    assert ask("hello")["evidence"]["marker"] != first
