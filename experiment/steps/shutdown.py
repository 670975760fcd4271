"""shutdown: the meter off, by the provider's own word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from experiment import faults
from experiment.clock import Clock, iso
from experiment.errors import GuardRefused, HostNotStopped
from experiment.ledger import Evidence, states
from experiment.money.amounts import Segment, shown
from experiment.providers.base import Instance, Provider
from experiment.rentals import Rental, book
from experiment.steps.session import Session

OFF_WITHIN_SECONDS = 180.0
# A power-off sent while the instance still starts may do nothing: it is sent again.
_REPEAT_SECONDS = 15.0

_OFF = ("off", "released")


@dataclass(frozen=True)
class Receipt:
    """The provider's confirmation that an instance is off."""

    instance: str
    state: str
    confirmed_at: datetime
    by: str
    segments: tuple[tuple[datetime, datetime | None], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "state": self.state,
            "confirmed_at": iso(self.confirmed_at),
            "by": self.by,
        }


def confirm_off(
    provider: Provider,
    instance_id: str,
    clock: Clock,
    *,
    by: str,
    within_seconds: float = OFF_WITHIN_SECONDS,
) -> Receipt:
    """Power the instance off and wait for the provider to say so.

    Args:
        by: who or what stops it, for the receipt.

    Raises:
        HostNotStopped: the provider does not confirm in time. Money may still be running.
    """
    give_up = clock.monotonic() + within_seconds
    asked: float | None = None
    while True:
        instance = provider.status(instance_id)
        if instance.state in _OFF:
            return _receipt(instance, clock, by)
        now = clock.monotonic()
        if now >= give_up:
            raise HostNotStopped(
                "THE HOST IS NOT CONFIRMED OFF AND MAY STILL BE BILLING",
                instance_id,
                expected=f"off within {within_seconds:.0f} s",
                found=instance.state,
                hint="charter shutdown RUN again, or stop it in the provider's console now",
            )
        if asked is None or now - asked >= _REPEAT_SECONDS:
            provider.power_off(instance_id)
            asked = now
        clock.sleep(0.1)


def shutdown(session: Session, *, order: str = "") -> Evidence:
    """Stop the run's host as the contract says, close its rental, and count the cost.

    Args:
        order: who asked for it. Needed from FAILED; from VERIFIED the contract's word is enough.

    Raises:
        HostNotStopped: see `confirm_off`.
        GuardRefused: the run is neither VERIFIED nor was its stop ordered.
    """
    state = session.state()
    if session.is_done("shutdown"):
        return session.recorded("shutdown")
    if state not in (states.VERIFIED, states.FAILED) or (state == states.FAILED and not order):
        raise GuardRefused(
            "shutdown refused",
            f"run {session.run_id}",
            expected="a VERIFIED run, or a person's order",
            found=f"{state}",
            hint=f"charter shutdown {session.run_id}",
        )
    rental = session.rental

    def do(_begun: Evidence) -> Evidence:
        by = order or f"contract: shutdown {session.contract.billing.shutdown}"
        closed = money_stop(session, rental, by=by)
        if session.contract.billing.shutdown == "release":
            session.provider.release(str(rental.instance))
        return {
            "instance": rental.instance,
            "receipt": closed.receipt,
            "cost": cost_of(session),
            "data_disk": "gone" if session.contract.billing.shutdown == "release" else "kept",
            "order": order,
        }

    inputs = {"instance": rental.instance, "policy": session.contract.billing.shutdown}
    return session.controller.once("shutdown", inputs, do, to=states.SHUTDOWN)


def money_stop(session: Session, rental: Rental, *, by: str) -> Rental:
    """Stop paying: the rental is closed on the provider's word; the run's state stays as it is."""
    if rental.status == book.CLOSED:
        return rental
    others = [run for run in session.rentals.leased(rental.name) if run != session.run_id]
    if others:
        raise GuardRefused(
            "stop refused",
            str(rental.instance),
            expected=f"the host of run {session.run_id}",
            found=f"run {others[0]} works on it now",
            hint=f"charter shutdown {others[0]}",
        )
    session.rentals.record(rental.name, book.STOPPING)
    faults.reached("shutdown.stopping")
    try:
        receipt = confirm_off(session.provider, str(rental.instance), session.clock, by=by)
    except HostNotStopped:
        session.rentals.record(rental.name, book.UNCONFIRMED)
        raise
    segments = [Segment(rental.rate, start, stop) for start, stop in receipt.segments]
    closed = session.rentals.record(
        rental.name, book.CLOSED, receipt=receipt.as_json(), segments=segments
    )
    for run_id in session.rentals.leased(rental.name):
        session.rentals.release_lease(rental.name, run_id)
    return closed


def cost_of(session: Session) -> Mapping[str, Any]:
    """What the run's rentals cost, an estimate by the provider's rate and the paid time."""
    amount, seconds = session.rentals.paid(session.run_id)
    return {
        "amount": shown(amount),
        "currency": session.contract.billing.currency,
        "paid_seconds": f"{seconds:.1f}",
        "estimate": True,
    }


def _receipt(instance: Instance, clock: Clock, by: str) -> Receipt:
    segments = tuple((start, stop or clock.now()) for start, stop in instance.segments)
    return Receipt(instance.id, instance.state, clock.now(), by, segments)
