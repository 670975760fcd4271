"""Opening the ledger's database: pragmas, write transactions, schema version, migration."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from experiment.errors import CharterError, NotFound
from experiment.ledger import schema

# Version n -> the function that brings a ledger of version n to n + 1.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {}

_BUSY_SECONDS = 30.0


class Database:
    """The ledger's engine. Writes are serialised; no transaction is open while a step works."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sqlite_path = _sqlite_path(url)
        self.engine = _engine(url)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction: BEGIN IMMEDIATE on SQLite, an ordinary one on PostgreSQL."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Reads in autocommit: nothing stays open behind them."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    def prepare(self) -> None:
        """Create the tables, or migrate an older ledger after a backup.

        Raises:
            CharterError: the ledger was written by a newer Charter.
        """
        if self.sqlite_path is not None:
            self.sqlite_path.parent.mkdir(parents=True, exist_ok=True)
        with self.read() as connection:
            if _version(connection) == schema.SCHEMA_VERSION:
                return
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                # Two controllers starting at once would race in CREATE TABLE.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(7216849)"))
            found = _version(connection)
            if found is None:
                schema.metadata.create_all(connection)
                connection.execute(
                    schema.meta.insert().values(
                        key="schema_version", value=str(schema.SCHEMA_VERSION)
                    )
                )
                return
        if found > schema.SCHEMA_VERSION:
            self.close()
            raise CharterError(
                "ledger refused",
                self.url if self.sqlite_path is None else str(self.sqlite_path),
                expected=f"schema version {schema.SCHEMA_VERSION} or older",
                found=f"version {found}",
                hint="use the newer Charter that wrote it",
            )
        if found < schema.SCHEMA_VERSION:
            self._migrate(found)

    def require(self) -> None:
        """For readers: the ledger must exist already; nothing is created.

        Raises:
            NotFound: there is no ledger yet.
        """
        if self.sqlite_path is not None and not self.sqlite_path.exists():
            raise NotFound(
                "no ledger", str(self.sqlite_path), hint="start a run first: charter run CONTRACT"
            )

    def close(self) -> None:
        self.engine.dispose()

    def _migrate(self, found: int) -> None:
        if self.sqlite_path is not None:
            _backup(self.sqlite_path, found)
        with self.write() as connection:
            current = _version(connection) or found
            for version in range(current, schema.SCHEMA_VERSION):
                MIGRATIONS[version](connection)
            connection.execute(
                schema.meta.update()
                .where(schema.meta.c.key == "schema_version")
                .values(value=str(schema.SCHEMA_VERSION))
            )


def one_at_a_time(connection: Connection) -> None:
    """Let nobody else past this point until the transaction ends. SQLite's write transactions are
    that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7216850)"))


def _version(connection: Connection) -> int | None:
    if not sa.inspect(connection).has_table(schema.meta.name):
        return None
    value = connection.execute(
        sa.select(schema.meta.c.value).where(schema.meta.c.key == "schema_version")
    ).scalar_one_or_none()
    return None if value is None else int(value)


def _backup(path: Path, version: int) -> None:
    """A consistent copy beside the ledger, by SQLite's own backup, before anything changes."""
    target = path.with_name(f"{path.name}.v{version}.bak")
    with sqlite3.connect(path) as source, sqlite3.connect(target) as copy:
        source.backup(copy)


def _sqlite_path(url: str) -> Path | None:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:":
        raise CharterError("ledger refused", url, expected="a file", found="an in-memory database")
    return Path(parsed.database)


def _engine(url: str) -> Engine:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_pre_ping=True)
    engine = sa.create_engine(
        parsed, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False}
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(dbapi_connection: Any, _record: Any) -> None:
    # The driver's own implicit BEGIN is deferred: two writers would both read, then collide.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
