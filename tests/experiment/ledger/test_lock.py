"""One controller per job: expiry, epochs, dead holders."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import sqlalchemy as sa

from experiment.errors import Busy, Fenced
from experiment.ledger import Ledger, hold, schema
from remote.agent import process


def _hold_as(ledger: Ledger, identity: dict[str, object]) -> None:
    """Make somebody else the holder."""
    import platform

    lock = hold(ledger, "tiny", 10)
    lock._stop.set()
    with ledger.database.write() as connection:
        connection.execute(
            schema.locks.update().values(holder=json.dumps({"node": platform.node(), **identity}))
        )


@pytest.fixture
def living() -> object:
    """A process that holds the lock and lives."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.communicate(b"\n")


def test_each_holder_gets_a_higher_epoch(ledger: Ledger) -> None:
    """Given back and taken again: the epoch never repeats."""
    epochs = []
    for _ in range(3):
        with hold(ledger, "tiny") as lock:
            epochs.append(lock.epoch)
    assert epochs == [1, 2, 3]


def test_a_living_holder_is_waited_for_until_its_lease_ends(
    ledger: Ledger, clock: object, living: subprocess.Popen[bytes]
) -> None:
    """A holder that is stopped (it does not renew) loses the job when its lease is over."""
    _hold_as(ledger, process.identify(living.pid))
    with hold(ledger, "tiny", 10) as lock:
        assert lock.epoch == 2
    assert 9 <= clock.monotonic() <= 11


def test_a_renewing_holder_makes_others_busy(
    ledger: Ledger, clock: object, living: subprocess.Popen[bytes]
) -> None:
    """After three leases the other gives up and says who holds the job."""
    _hold_as(ledger, process.identify(living.pid))
    with ledger.database.write() as connection:
        connection.execute(schema.locks.update().values(expires_at=1e12))
    with pytest.raises(Busy, match=str(living.pid)):
        hold(ledger, "tiny", 10)
    assert clock.monotonic() >= 30


def test_a_dead_holder_is_replaced_at_once(ledger: Ledger, clock: object) -> None:
    """Same boot, and no process with that PID and start time: nobody waits."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process.identify(child.pid)
    child.communicate(b"\n")
    _hold_as(ledger, identity)
    with hold(ledger, "tiny", 1000) as lock:
        assert lock.epoch == 2
    assert clock.monotonic() == 0


def test_a_holder_on_another_machine_is_not_declared_dead(ledger: Ledger, clock: object) -> None:
    """Only expiry ends a holder that cannot be looked at."""
    _hold_as(ledger, {"pid": 1, "start": "0", "boot_id": "another"})
    with ledger.database.write() as connection:
        connection.execute(schema.locks.update().values(expires_at=1e12))
    with pytest.raises(Busy):
        hold(ledger, "tiny", 1)


def test_renewing_a_lost_lock_is_fenced(ledger: Ledger) -> None:
    """A controller that slept past its lease cannot renew under the newer one's epoch."""
    lock = hold(ledger, "tiny")
    lock.release()
    hold(ledger, "tiny").release()
    with pytest.raises(Fenced):
        lock.renew()


def test_jobs_do_not_disturb_each_other(ledger: Ledger) -> None:
    """Two jobs are held at once."""
    with hold(ledger, "one") as first, hold(ledger, "two") as second:
        assert (first.epoch, second.epoch) == (1, 1)
    with ledger.database.read() as connection:
        held = connection.execute(sa.select(schema.locks.c.holder)).scalars().all()
    assert held == [None, None]
