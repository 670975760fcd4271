"""Pieces of a log by byte offset, never half a letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.agent.agent_host import AgentHost

TEXT = "erste Zeile\nzweite Zeile mit ü\n训练 step 3\nlast"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with AgentHost(tmp_path) as made:
        made.run.log.parent.mkdir(parents=True)
        made.run.log.write_text(TEXT, encoding="utf-8")
        yield made


def test_missing_log_exits_4(host: AgentHost) -> None:
    """Without a log the step says so with its own exit code."""
    host.run.log.unlink()
    assert host.refusal("logs")["exit_code"] == 4


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(0, ""), (1, "last"), (2, "训练 step 3\nlast"), (99, TEXT)],
)
def test_tail(host: AgentHost, lines: int, expected: str) -> None:
    """The last lines, counted whether the last has its newline or not."""
    assert host.do("logs", tail_lines=lines)["text"] == expected


@pytest.mark.parametrize("size", [4, 5, 7, 16, 1000])
def test_following_gives_every_letter_once(host: AgentHost, size: int) -> None:
    """Read in small pieces, the log comes out whole, letters of several bytes too."""
    found, offset = "", 0
    while True:
        piece = host.do("logs", offset=offset, max_bytes=size)
        found += piece["text"]
        if piece["next_offset"] == piece["size"]:
            break
        assert piece["next_offset"] > offset
        offset = piece["next_offset"]
    assert found == TEXT


def test_bad_utf8_is_replaced(host: AgentHost) -> None:
    """Bytes that are no text don't stop the reading."""
    host.run.log.write_bytes(b"ok \xff\xfe end\n")
    assert host.do("logs", offset=0)["text"] == "ok \ufffd\ufffd end\n"


def test_offset_behind_the_end_begins_anew(host: AgentHost) -> None:
    """A log shorter than the offset was replaced."""
    answer = host.do("logs", offset=10_000)
    assert (answer["offset"], answer["text"]) == (0, TEXT)


@pytest.mark.parametrize("field", ["offset", "tail_lines", "max_bytes"])
@pytest.mark.parametrize("value", [-1, "7", 1.5, True])
def test_wrong_numbers_are_named(host: AgentHost, field: str, value: object) -> None:
    """A number that is none is refused by name."""
    error = host.refusal("logs", **{field: value})
    assert error["exit_code"] == 64
    assert field in error["message"]
