"""The rentals as `charter rentals` shows them."""

from __future__ import annotations

from typing import Any

from experiment.clock import iso
from experiment.errors import NotFound
from experiment.ledger import Ledger
from experiment.money.amounts import shown
from experiment.paths import Home
from experiment.rentals.book import Rental, Rentals


def list_rentals(home: Home) -> list[dict[str, Any]]:
    """Every rental, newest first, in the keys of the interface page."""
    try:
        ledger = Ledger.existing(home)
    except NotFound:
        return []
    try:
        return [_row(ledger, rental) for rental in reversed(Rentals(ledger).all())]
    finally:
        ledger.close()


def _row(ledger: Ledger, rental: Rental) -> dict[str, Any]:
    segments = rental.segments
    stopped = segments[-1].stop if segments else None
    return {
        "instance": rental.instance,
        "name": rental.name,
        "provider": rental.provider,
        "job": rental.job,
        "run_id": rental.run_id,
        "status": rental.status,
        "kept": rental.kept,
        "rate": str(rental.rate),
        "currency": rental.currency,
        "started_at": iso(segments[0].start) if segments else None,
        "stopped_at": iso(stopped) if stopped else None,
        "cost": shown(rental.cost(ledger.clock.now())),
        "receipt": rental.receipt,
    }
