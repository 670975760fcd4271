"""The sweep: what is rented beside what runs, and what nobody needs is stopped.

`decide` is the whole rule, without a clock or a network. First match:

| seen | does |
|---|---|
| the provider says off, released | close the rental |
| the provider says lost, unknown | mark unknown |
| the approved money or hours are used up | money stop |
| a stop was begun, or not confirmed | money stop |
| a living controller works on the job | leave |
| never armed, ten minutes after its rental | money stop |
| the host does not answer | leave: its watchdog and the deadline hold |
| the trainer works | leave |
| run SHUTDOWN; run VERIFIED and the contract does not keep | money stop |
| run FAILED, PARTIAL, COLLECTED | held for a fix, then money stop |
| anything else | leave |

Unreachable is not dead: the deadline decides then, here and on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError

from experiment.clock import parse_iso
from experiment.errors import CharterError, HostNotStopped, HostUnreachable, StepTimeout
from experiment.ledger import Ledger, RunRow, is_held, states
from experiment.money.amounts import Segment, affordable_seconds
from experiment.paths import Home
from experiment.providers.base import Instance, Provider
from experiment.providers.registry import get_provider
from experiment.rentals import book
from experiment.rentals.book import Rental, Rentals
from experiment.steps.arm import ARMED_WITHIN_SECONDS
from experiment.steps.monitor import status
from experiment.steps.opening import is_over
from experiment.steps.session import RunRef, Session, attached
from experiment.steps.shutdown import confirm_off, money_stop

Action = Literal["close", "unknown", "stop", "leave"]
Trainer = Literal["alive", "none", "unreachable"]

# An intent to rent that no controller followed up is settled with the provider after this long.
INTENT_SECONDS = 900
_OFF = ("off", "released")


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


@dataclass(frozen=True)
class Seen:
    """What is known of a live rental.

    Args:
        provider: the instance's state there.
        rental: the rental's status here.
        run_state: the state of the run that holds it.
        trainer: what the agent says.
        deadline_passed: the grant's money or hours are used up.
        controlled: a living controller holds the job.
        armed: a watchdog was armed in this attempt.
        open_seconds: since the rental was opened.
        held_seconds: since the run's last entry.
        hold_seconds: how long a failed run's host waits for a fix.
        keep: the contract keeps the host on after VERIFIED.
    """

    provider: str
    rental: str = book.OPEN
    run_state: str | None = states.RUNNING
    trainer: Trainer = "none"
    deadline_passed: bool = False
    controlled: bool = False
    armed: bool = True
    open_seconds: float = 0
    held_seconds: float = 0
    hold_seconds: float = 1200
    keep: bool = False


def decide(seen: Seen) -> tuple[Action, str]:
    """What to do with a live rental, and why. See the table above."""
    if seen.provider in _OFF:
        return "close", f"the provider says {seen.provider}"
    if seen.provider in ("lost", "unknown"):
        return "unknown", f"the provider says {seen.provider}"
    if seen.deadline_passed:
        return "stop", "the approved money or hours are used up"
    if seen.rental in (book.STOPPING, book.UNCONFIRMED):
        return "stop", f"its stop is {seen.rental}"
    if seen.controlled:
        return "leave", "a controller works on it"
    if not seen.armed and seen.open_seconds >= ARMED_WITHIN_SECONDS:
        return "stop", "never armed"
    if seen.trainer == "unreachable":
        return "leave", "the host does not answer; its own watchdog and the deadline hold"
    if seen.trainer == "alive":
        return "leave", "the trainer works"
    if seen.run_state == states.SHUTDOWN:
        return "stop", "the run is over"
    if seen.run_state == states.VERIFIED:
        return ("leave", "the contract keeps it") if seen.keep else ("stop", "the run is verified")
    if seen.run_state in (states.FAILED, states.PARTIAL, states.COLLECTED):
        if seen.held_seconds >= seen.hold_seconds:
            return "stop", f"held {seen.hold_seconds:.0f} s for a fix after {seen.run_state}"
        return "leave", f"held for a fix after {seen.run_state}"
    return "leave", f"the run is {seen.run_state}"


def sweep(home: Home, ledger: Ledger) -> list[Finding]:
    """Look at every live rental once, and for instances that are on over a closed one.

    One that fails does not keep the others from being seen.
    """
    rentals = Rentals(ledger)
    found = [_one(home, ledger, rental) for rental in rentals.live()]
    return [*found, *_surplus(home, ledger, rentals)]


def _one(home: Home, ledger: Ledger, rental: Rental) -> Finding:
    try:
        return _settle(home, ledger, rental)
    except HostNotStopped as error:
        return Finding(rental.name, rental.instance, "stop", "NOT STOPPED", error.line())
    except (CharterError, SQLAlchemyError, OSError, ValueError) as error:
        # Reported, not swallowed: the flow fails on it, after the other rentals were seen.
        return Finding(rental.name, rental.instance, "leave", "could not be looked at", str(error))


def _settle(home: Home, ledger: Ledger, rental: Rental) -> Finding:
    rentals = Rentals(ledger)
    provider = get_provider(rental.provider, home, ledger.clock)
    if rental.instance is None:
        return _intent(ledger, rentals, rental, provider.find(rental.name))
    instance = provider.status(rental.instance)
    run = ledger.run(rental.run_id)
    with attached(RunRef(str(home.root), run.run_id), ledger.clock) as session:
        entries = len(ledger.entries(run.run_id))
        action, reason = decide(_look(session, rental, instance))
        fresh = rentals.get(rental.name)
        moved = (fresh.run_id, fresh.status) != (rental.run_id, rental.status)
        if action == "stop" and (moved or len(ledger.entries(run.run_id)) != entries):
            # Looking took a while, and somebody worked on it meanwhile: the next sweep looks anew.
            return Finding(rental.name, rental.instance, "leave", "it changed while looked at")
        if action in ("close", "stop"):
            money_stop(session, fresh, by=f"sweep: {reason}")
        elif action == "unknown":
            rentals.record(rental.name, book.UNKNOWN)
    return Finding(rental.name, rental.instance, action, reason)


def _look(session: Session, rental: Rental, instance: Instance) -> Seen:
    ledger = session.ledger
    on = instance.state not in (*_OFF, "lost", "unknown")
    now = ledger.clock.now()
    return Seen(
        provider=instance.state,
        rental=rental.status,
        run_state=session.state(),
        trainer=_trainer(session) if on else "none",
        deadline_passed=_deadline_passed(session, rental),
        controlled=is_held(ledger, session.job),
        armed=session.is_done("arm"),
        open_seconds=(now - parse_iso(rental.opened_at)).total_seconds(),
        held_seconds=_since_last_entry(ledger, session.run),
        hold_seconds=session.contract.billing.hold_on_failure,
        keep=session.contract.billing.shutdown == "keep",
    )


def _intent(ledger: Ledger, rentals: Rentals, rental: Rental, found: Instance | None) -> Finding:
    """An intent without an instance: its controller is at it, or died."""
    age = (ledger.clock.now() - parse_iso(rental.opened_at)).total_seconds()
    if age < INTENT_SECONDS or is_held(ledger, rental.job):
        return Finding(rental.name, None, "leave", "being rented")
    if found is None:
        rentals.record(rental.name, book.CLOSED)
        return Finding(rental.name, None, "close", "never created")
    rentals.record(
        rental.name,
        book.OPEN,
        instance=found.id,
        rate=found.rate,
        segments=[Segment(found.rate, start, stop) for start, stop in found.segments],
    )
    return Finding(rental.name, found.id, "leave", "created and not followed up: now watched")


def _surplus(home: Home, ledger: Ledger, rentals: Rentals) -> list[Finding]:
    """Instances that are on although their rental is closed: stopped, their cost is counted."""
    closed = {rental.name: rental for rental in rentals.all() if rental.status == book.CLOSED}
    findings = []
    for name in sorted({rental.provider for rental in closed.values()}):
        provider = get_provider(name, home, ledger.clock)
        for instance in provider.list():
            rental = closed.get(instance.name)
            if rental is not None and instance.state in ("starting", "running", "unknown"):
                findings.append(_stop_surplus(ledger, provider, rental, instance))
    return findings


def _stop_surplus(
    ledger: Ledger, provider: Provider, rental: Rental, instance: Instance
) -> Finding:
    reason = "on although its rental is closed"
    try:
        receipt = confirm_off(provider, instance.id, ledger.clock, by=f"sweep: {reason}")
    except CharterError as error:
        return Finding(rental.name, instance.id, "stop", "NOT STOPPED", error.line())
    segments = [Segment(rental.rate, start, stop) for start, stop in receipt.segments]
    Rentals(ledger).record(rental.name, book.CLOSED, segments=segments, receipt=receipt.as_json())
    return Finding(rental.name, instance.id, "stop", reason)


def _trainer(session: Session) -> Trainer:
    if not session.was_begun("launch"):
        return "none"
    try:
        seen = status(session)
    except (HostUnreachable, StepTimeout):
        return "unreachable"
    return "alive" if seen["process"]["alive"] or seen["process"]["tree"] else "none"


def _deadline_passed(session: Session, rental: Rental) -> bool:
    grant = session.grants.newest(session.run_id)
    if grant is None:
        return True
    spent, seconds = session.rentals.paid(session.run_id)
    left = affordable_seconds(
        grant.bounds.max_total,
        spent,
        Decimal(0),
        rental.rate,
        grant.bounds.max_hours - seconds / Decimal(3600),
    )
    return left <= 0


def _since_last_entry(ledger: Ledger, run: RunRow) -> float:
    entries = ledger.entries(run.run_id)
    last = parse_iso(entries[-1]["at_utc"] if entries else run.created_at)
    return max((ledger.clock.now() - last).total_seconds(), 0.0)


def abandoned_runs(root: str) -> list[dict[str, str]]:
    """`run_id` and `flow_run` of runs that were approved, are not over, and have no controller."""
    ledger = Ledger.open(Home(Path(root)))
    try:
        return [
            {"run_id": run.run_id, "flow_run": run.flow_run}
            for run in ledger.runs()
            if run.flow_run is not None
            and run.state != states.PARTIAL
            and not is_over(ledger, run)
            and ledger.done(run.run_id, "approve") is not None
            and not is_held(ledger, run.job)
        ]
    finally:
        ledger.close()


def home_sweep(root: str) -> list[Finding]:
    """`sweep` of a home given by its path."""
    home = Home(Path(root))
    ledger = Ledger.open(home)
    try:
        return sweep(home, ledger)
    finally:
        ledger.close()
