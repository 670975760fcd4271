"""One controller per job: a lock with expiry and an epoch.

Whoever takes the lock raises the epoch; every write and every request to the agent carries it, so
that a controller which was stopped and continued finds itself fenced off instead of acting twice.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from experiment.clock import Clock
from experiment.errors import Busy, Fenced
from experiment.ledger import schema
from experiment.ledger.ledger import Ledger
from remote.agent import process
from remote.agent.files import canonical_json

LEASE_SECONDS = 60.0
_POLL_SECONDS = 0.5


@dataclass
class JobLock:
    """The lock of one job, held. Use `hold` to take it; `release` or `with` to give it back."""

    ledger: Ledger
    job: str
    epoch: int
    lease_seconds: float
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> JobLock:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def renew(self) -> None:
        """Move the expiry on.

        Raises:
            Fenced: another controller took the job.
        """
        with self.ledger.database.write() as connection:
            changed = connection.execute(
                schema.locks.update()
                .where(schema.locks.c.job == self.job, schema.locks.c.epoch == self.epoch)
                .values(expires_at=self.ledger.clock.now().timestamp() + self.lease_seconds)
            )
        if changed.rowcount != 1:
            raise Fenced("this controller was replaced", f"job {self.job}, epoch {self.epoch}")

    def release(self) -> None:
        """Give the job back; the epoch stays, so that late writes of ours are still refused."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self.ledger.database.write() as connection:
            connection.execute(
                schema.locks.update()
                .where(schema.locks.c.job == self.job, schema.locks.c.epoch == self.epoch)
                .values(holder=None, expires_at=0.0)
            )

    def keep_alive(self) -> None:
        """Renew from a thread until released or fenced."""

        def beat() -> None:
            while not self._stop.wait(self.lease_seconds / 3):
                try:
                    self.renew()
                except Fenced:
                    return
                except sa.exc.OperationalError:
                    # A busy database now is no reason to give the job up: the next beat tries
                    # again, and the epoch check guards every write in between.
                    continue

        self._thread = threading.Thread(target=beat, name=f"lock-{self.job}", daemon=True)
        self._thread.start()


def is_held(ledger: Ledger, job: str) -> bool:
    """Whether a living controller works on the job now."""
    with ledger.database.read() as connection:
        row = connection.execute(sa.select(schema.locks).where(schema.locks.c.job == job)).first()
    if row is None or not row.holder or row.expires_at <= ledger.clock.now().timestamp():
        return False
    return not _gone(json.loads(row.holder))


def hold(ledger: Ledger, job: str, lease_seconds: float | None = None) -> JobLock:
    """Take the job's lock, waiting up to three leases for a living holder.

    A holder whose process is provably gone (same boot, PID and start time not there) is replaced
    at once. `CHARTER_LEASE_SECONDS` sets the lease.

    Raises:
        Busy: somebody else still holds the job.
    """
    lease = lease_seconds or float(os.environ.get("CHARTER_LEASE_SECONDS", LEASE_SECONDS))
    clock = ledger.clock
    give_up = clock.monotonic() + 3 * lease
    while True:
        epoch, holder = _try(ledger, job, lease, clock)
        if epoch is not None:
            lock = JobLock(ledger, job, epoch, lease)
            lock.keep_alive()
            return lock
        if clock.monotonic() >= give_up:
            raise Busy(
                "job is held by another controller",
                job,
                found=_describe(holder),
                hint="charter status; it goes on by itself",
            )
        clock.sleep(_POLL_SECONDS)


def _try(
    ledger: Ledger, job: str, lease: float, clock: Clock
) -> tuple[int | None, dict[str, Any] | None]:
    """The new epoch, or None and who holds the job."""
    now = clock.now().timestamp()
    with ledger.database.write() as connection:
        row = _locked_row(connection, job)
        holder = json.loads(row.holder) if row.holder else None
        if holder is not None and row.expires_at > now and not _gone(holder):
            return None, holder
        epoch = int(row.epoch) + 1
        connection.execute(
            schema.locks.update()
            .where(schema.locks.c.job == job)
            .values(epoch=epoch, holder=canonical_json(_myself()).decode(), expires_at=now + lease)
        )
    return epoch, None


def _locked_row(connection: Connection, job: str) -> Any:
    query = sa.select(schema.locks).where(schema.locks.c.job == job).with_for_update()
    row = connection.execute(query).first()
    if row is not None:
        return row
    values = {"job": job, "epoch": 0, "holder": None, "expires_at": 0.0}
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        # Two first takers race here; the loser then waits for the winner's row.
        connection.execute(insert(schema.locks).values(values).on_conflict_do_nothing())
    else:
        connection.execute(schema.locks.insert().values(values))
    return connection.execute(query).one()


def _myself() -> dict[str, Any]:
    identity = process.identify(os.getpid())
    return {"node": platform.node(), **(identity or {"pid": os.getpid()})}


def _gone(holder: dict[str, Any]) -> bool:
    """Provably gone: on this boot of this machine, and no such process lives."""
    if holder.get("node") != platform.node() or holder.get("boot_id") != process.boot_id():
        return False
    return not process.alive(holder)


def _describe(holder: dict[str, Any] | None) -> str:
    if not holder:
        return "an unknown holder"
    return f"process {holder.get('pid')} on {holder.get('node')}"
