"""A ledger on each database that Charter supports, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from experiment.ledger import Ledger
from experiment.ledger.database import Database
from experiment.ledger.schema import metadata
from tests.twins.postgres import postgres_server


class MovedClock:
    """Time that passes only when a test or a sleep says so."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 0.0

    def now(self) -> datetime:
        return self.moment + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    found: str = request.getfixturevalue("postgres_url")
    database = Database(found)
    metadata.drop_all(database.engine)
    database.close()
    return found


@pytest.fixture
def ledger(url: str, clock: MovedClock) -> Iterator[Ledger]:
    database = Database(url)
    database.prepare()
    opened = Ledger(database, clock)
    yield opened
    opened.close()


@pytest.fixture
def run_id(ledger: Ledger) -> str:
    return ledger.create_run("tiny", {"job": "tiny"}, "a" * 64, "/nowhere", "test").run_id


def count(ledger: Ledger, table: sa.Table) -> int:
    with ledger.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
