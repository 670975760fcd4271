"""The sweep: what is rented beside what runs, and what nobody needs is stopped.

`decide` is the whole rule, without a clock or a network:

| provider says | run | agent says | deadline | does |
|---|---|---|---|---|
| off, released | any | – | any | close the rental |
| lost, unknown | any | – | any | mark unknown |
| on | any | any | passed | money stop |
| on | any | unreachable | ahead | leave |
| on | any | trainer alive | ahead | leave |
| on | not ended, not yet launched | no trainer | ahead | leave |
| on | FAILED, PARTIAL, COLLECTED | no trainer | ahead | hold, then money stop |
| on | VERIFIED, policy keep | no trainer | ahead | leave |
| on | SHUTDOWN | no trainer | ahead | money stop |

Unreachable is not dead: the deadline decides then, here and on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

from experiment.clock import parse_iso
from experiment.errors import CharterError, HostNotStopped, HostUnreachable
from experiment.ledger import Ledger, RunRow, states
from experiment.money.amounts import Segment, affordable_seconds
from experiment.paths import Home
from experiment.providers.base import Instance
from experiment.providers.registry import get_provider
from experiment.rentals import book
from experiment.rentals.book import Rental, Rentals
from experiment.steps.monitor import status
from experiment.steps.session import RunRef, Session, attached
from experiment.steps.shutdown import money_stop

Action = Literal["close", "unknown", "stop", "leave"]
Trainer = Literal["alive", "none", "unreachable"]

# An intent to rent that no controller followed up: found at the provider, it is stopped.
INTENT_SECONDS = 900


@dataclass(frozen=True)
class Finding:
    """What the sweep saw of one rental, and did."""

    rental: str
    instance: str | None
    action: Action
    reason: str
    error: str = ""

    def as_json(self) -> dict[str, str | None]:
        return dict(self.__dict__)


def decide(
    *,
    provider: str,
    run_state: str | None,
    trainer: Trainer,
    deadline_passed: bool,
    held_seconds: float,
    hold_seconds: float,
    keep: bool,
) -> tuple[Action, str]:
    """What to do with a live rental, and why. See the table above.

    Args:
        provider: the instance's state there.
        held_seconds: since the run's last entry.
        hold_seconds: how long a failed run's host waits for a fix.
        keep: the contract keeps the host on after VERIFIED.
    """
    if provider in ("off", "released"):
        return "close", f"the provider says {provider}"
    if provider in ("lost", "unknown"):
        return "unknown", f"the provider says {provider}"
    if deadline_passed:
        return "stop", "the approved money or hours are used up"
    if trainer == "unreachable":
        return "leave", "the host does not answer; its own watchdog and the deadline hold"
    if trainer == "alive":
        return "leave", "the trainer works"
    if run_state == states.SHUTDOWN:
        return "stop", "the run is over"
    if run_state == states.VERIFIED and keep:
        return "leave", "the contract keeps the host"
    if run_state in (states.FAILED, states.PARTIAL, states.COLLECTED):
        if held_seconds >= hold_seconds:
            return "stop", f"held {hold_seconds:.0f} s for a fix after {run_state}"
        return "leave", f"held for a fix after {run_state}"
    return "leave", f"the run is {run_state}"


def sweep(home: Home, ledger: Ledger) -> list[Finding]:
    """Look at every live rental once. One that fails does not keep the others from being seen."""
    return [_one(home, ledger, rental) for rental in Rentals(ledger).live()]


def _one(home: Home, ledger: Ledger, rental: Rental) -> Finding:
    try:
        return _settle(home, ledger, rental)
    except HostNotStopped as error:
        return Finding(rental.name, rental.instance, "stop", "NOT STOPPED", error.line())
    except CharterError as error:
        reason = "could not be looked at"
        return Finding(rental.name, rental.instance, "leave", reason, error.line())


def _settle(home: Home, ledger: Ledger, rental: Rental) -> Finding:
    rentals = Rentals(ledger)
    provider = get_provider(rental.provider, home, ledger.clock)
    if rental.instance is None:
        return _intent(ledger, rentals, rental, provider.find(rental.name))
    instance = provider.status(rental.instance)
    run = ledger.run(rental.run_id)
    with attached(RunRef(str(home.root), run.run_id), ledger.clock) as session:
        on = instance.state not in ("off", "released", "lost", "unknown")
        action, reason = decide(
            provider=instance.state,
            run_state=run.state,
            trainer=_trainer(session) if on else "none",
            deadline_passed=_deadline_passed(session, rental),
            held_seconds=_since_last_entry(ledger, run),
            hold_seconds=session.contract.billing.hold_on_failure,
            keep=session.contract.billing.shutdown == "keep",
        )
        if action in ("close", "stop"):
            money_stop(session, rental, by=f"sweep: {reason}")
        elif action == "unknown":
            rentals.record(rental.name, book.UNKNOWN)
    return Finding(rental.name, rental.instance, action, reason)


def _intent(ledger: Ledger, rentals: Rentals, rental: Rental, found: Instance | None) -> Finding:
    """An intent without an instance: its controller is at it, or died."""
    age = (ledger.clock.now() - parse_iso(rental.opened_at)).total_seconds()
    if age < INTENT_SECONDS:
        return Finding(rental.name, None, "leave", "being rented")
    if found is None:
        rentals.record(rental.name, book.CLOSED, kept=False)
        return Finding(rental.name, None, "close", "never created")
    rentals.record(
        rental.name,
        book.OPEN,
        instance=found.id,
        rate=found.rate,
        segments=[Segment(found.rate, start, stop) for start, stop in found.segments],
    )
    return Finding(rental.name, found.id, "leave", "created and not followed up: now watched")


def _trainer(session: Session) -> Trainer:
    if not session.is_done("launch"):
        return "none"
    try:
        seen = status(session)
    except HostUnreachable:
        return "unreachable"
    return "alive" if seen["process"] and seen["process"]["alive"] else "none"


def _deadline_passed(session: Session, rental: Rental) -> bool:
    grant = session.grants.newest(session.run_id)
    if grant is None:
        return True
    now = session.clock.now()
    hours = sum((s.seconds(now) for s in rental.segments), Decimal(0)) / Decimal(3600)
    left = affordable_seconds(
        grant.bounds.max_total,
        session.rentals.spent(run_id=rental.run_id),
        Decimal(0),
        rental.rate,
        grant.bounds.max_hours - hours,
    )
    return left <= 0


def _since_last_entry(ledger: Ledger, run: RunRow) -> float:
    entries = ledger.entries(run.run_id)
    last: datetime = parse_iso(entries[-1]["at_utc"] if entries else run.created_at)
    return max(ledger.clock.now() - last, timedelta(0)).total_seconds()


def home_sweep(root: str) -> list[Finding]:
    """`sweep` of a home given by its path."""
    home = Home(Path(root))
    ledger = Ledger.open(home)
    try:
        return sweep(home, ledger)
    finally:
        ledger.close()
