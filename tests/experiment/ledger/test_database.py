"""Opening: creation, versions, migration with a backup."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from experiment.errors import Busy, CharterError, NotFound
from experiment.ledger import Ledger, database, schema
from experiment.ledger.database import Database
from experiment.paths import Home


def _set_version(url: str, version: int) -> None:
    opened = Database(url)
    with opened.write() as connection:
        connection.execute(schema.meta.update().values(value=str(version)))
    opened.close()


def test_a_newer_ledger_is_refused(url: str, ledger: Ledger) -> None:
    """An older Charter never writes into what a newer one made."""
    _set_version(url, schema.SCHEMA_VERSION + 1)
    with pytest.raises(CharterError, match="newer Charter"):
        Database(url).prepare()


def test_an_older_ledger_is_migrated_after_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each missing version's migration runs once, and the old file is kept beside."""
    path = tmp_path / "ledger.sqlite"
    url = f"sqlite:///{path}"
    Database(url).prepare()
    _set_version(url, schema.SCHEMA_VERSION - 1)

    def migrate(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE runs ADD COLUMN added TEXT"))

    monkeypatch.setitem(database.MIGRATIONS, schema.SCHEMA_VERSION - 1, migrate)
    Database(url).prepare()
    Database(url).prepare()
    columns = [c["name"] for c in sa.inspect(Database(url).engine).get_columns("runs")]
    assert "added" in columns
    backup = tmp_path / f"ledger.sqlite.v{schema.SCHEMA_VERSION - 1}.bak"
    with sqlite3.connect(backup) as old:
        assert "added" not in [row[1] for row in old.execute("PRAGMA table_info(runs)")]


def test_a_reader_creates_nothing(home: Home) -> None:
    """Looking at an empty home says so and leaves it empty."""
    with pytest.raises(NotFound, match="no ledger"):
        Ledger.existing(home)
    assert not home.root.exists()


def test_sqlite_is_durable(tmp_path: Path) -> None:
    """WAL with synchronous=FULL: a recorded step survives a power cut."""
    opened = Database(f"sqlite:///{tmp_path / 'l.sqlite'}")
    with opened.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_run_ids_are_unique_within_a_second(ledger: Ledger) -> None:
    """Runs of the same second, of whatever job, get suffixes; the newest is the last."""
    ids = [ledger.create_run(job, {}, "a" * 64, "/", "t").run_id for job in ("a", "b", "a")]
    assert ids == ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]
    assert ledger.resolve("a").run_id == ids[2]
    assert ledger.resolve(ids[1]).job == "b"
    with pytest.raises(NotFound, match="charter list"):
        ledger.resolve("nobody")


def test_two_that_decide_at_once_make_one_run(ledger: Ledger) -> None:
    """Both saw no run of the job: the second is told, and finds the first one's."""
    make = {"contract": {}, "contract_sha256": "a" * 64, "base": "/", "version": "t"}
    ledger.create_run("a", **make, after=None, alone=True)
    with pytest.raises(Busy, match="meanwhile"):
        ledger.create_run("a", **make, after=None, alone=True)
