from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from remote.agent.files import (
    canonical_json,
    read_json,
    read_json_or_none,
    sha256_file,
    write_atomic,
    write_json,
)


def test_canonical_json_has_one_form() -> None:
    """Key order and spaces do not matter; text stays text."""
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'.encode()
    assert canonical_json({"a": "é", "b": [1, 2.5]}) == canonical_json({"b": [1, 2.5], "a": "é"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\udcff"])
def test_canonical_json_refuses_what_has_no_form(value: object) -> None:
    """NaN, infinities and broken text raise instead of being hashed."""
    with pytest.raises(ValueError):
        canonical_json({"x": value})


def test_digest_of_a_file_larger_than_a_chunk(tmp_path: Path) -> None:
    """Chunks add up to the digest of the whole."""
    data = os.urandom(3_000_001)
    (tmp_path / "f").write_bytes(data)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_atomic_write_creates_folders_and_sets_the_mode(tmp_path: Path) -> None:
    """The mode is the asked one, whatever the umask, and nothing else is left in the folder."""
    target = tmp_path / "a b" / "c"
    before = os.umask(0o077)
    try:
        write_atomic(target, b"x", 0o644)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o644
    assert os.listdir(target.parent) == ["c"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A value without a JSON form leaves the old bytes and no temporary file."""
    target = tmp_path / "f.json"
    write_json(target, {"old": 1})
    with pytest.raises(ValueError):
        write_json(target, {"new": float("nan")})
    assert read_json(target) == {"old": 1}
    assert os.listdir(tmp_path) == ["f.json"]


def test_atomic_write_onto_a_folder_leaves_nothing(tmp_path: Path) -> None:
    """When the rename fails the temporary file goes."""
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "d", b"x")
    assert os.listdir(tmp_path) == ["d"]


def test_damaged_json_is_named_or_absent(tmp_path: Path) -> None:
    """`read_json` names the file; for markers a damaged file counts as none."""
    damaged = tmp_path / "m.json"
    damaged.write_text('{"status": "comp')
    with pytest.raises(ValueError, match=r"m\.json"):
        read_json(damaged)
    assert read_json_or_none(damaged) is None
    assert read_json_or_none(tmp_path / "none.json") is None
