from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from remote.agent.secret_patterns import (
    CHUNK_BYTES,
    PATTERNS,
    Scanner,
    kinds,
    scan_bytes,
    scan_file,
    scan_text,
)

CASES = json.loads((Path(__file__).parent / "cases" / "secrets.json").read_text())
PLANTED = "hf_" + "abcdefghijklmnopqrstuvwxyz12"


@pytest.mark.parametrize(("kind", "start", "rest"), CASES["hits"])
def test_secrets_are_found(kind: str, start: str, rest: str) -> None:
    """Each family, with the line that it stands on."""
    found = scan_text(f"first\nsecond\n  {start}{rest}\nlast\n")
    assert (3, kind) in found
    assert {line for line, _ in found} == {3}


@pytest.mark.parametrize("text", CASES["passes"])
def test_ordinary_text_passes(text: str) -> None:
    """Code, tokenizer settings, placeholders, metrics, words with a dash."""
    assert scan_text(text) == []


def test_every_kind_has_a_case() -> None:
    """No pattern without a planted secret."""
    assert {kind for kind, _, _ in CASES["hits"]} == set(kinds())


def test_the_table_is_json() -> None:
    """It can be shown, hashed and sent."""
    assert json.loads(json.dumps(PATTERNS)) == PATTERNS


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_pieces_do_not_matter(pieces: int) -> None:
    """A secret across the border of two pieces is found, on the right line."""
    data = ("x\n" * 50 + PLANTED + "\n" + "y\n" * 50).encode()
    scanner = Scanner()
    for start in range(0, len(data), pieces):
        scanner.feed(data[start : start + pieces])
    assert scanner.finish().hits == [(51, "huggingface_token")]


def test_large_files_in_chunks(tmp_path: Path) -> None:
    """Secrets after the first chunk, on chunk borders, and in one endless line."""
    line = b"step 1 loss 0.5\n"
    lines = CHUNK_BYTES // len(line)
    path = tmp_path / "log"
    path.write_bytes(
        line * (lines - 1) + PLANTED.encode() + b"\n" + line * lines + PLANTED.encode()
    )
    assert [number for number, _ in scan_file(path).hits] == [lines, 2 * lines + 1]
    path.write_bytes(b" " * (CHUNK_BYTES - 7) + PLANTED.encode() + b" " * CHUNK_BYTES)
    assert scan_file(path).hits == [(1, "huggingface_token")]


def test_binary_files_say_that_they_were_not_scanned(tmp_path: Path) -> None:
    """Skipped with a reason, not passed in silence; small and empty files count too."""
    (tmp_path / "b").write_bytes(b"\0" + PLANTED.encode())
    assert scan_file(tmp_path / "b") == ([], "binary")
    (tmp_path / "e").write_bytes(b"")
    assert scan_file(tmp_path / "e") == ([], None)


@pytest.mark.parametrize(
    "data",
    [
        b"token=" * 200_000,
        b"sk-" * 300_000,
        b"://a:" * 200_000,
        b"bearer " * 150_000,
        b".eyJ" * 100_000 + b"eyJaaaaaaaaaaa." * 20_000,
        b"a" * 2_000_000 + b"key",
    ],
    ids=["token", "sk", "url", "bearer", "jwt", "long"],
)
def test_no_input_makes_it_slow(data: bytes) -> None:
    """Hostile text costs time in proportion to its length."""
    began = time.process_time()
    scan_bytes(data)
    assert time.process_time() - began < 10


def test_random_text_is_quiet() -> None:
    """Half a megabyte of hexadecimal digits holds no secret."""
    assert scan_bytes(os.urandom(250_000).hex().encode()) == []
