"""Paid time: a state machine of its own, beside the run's."""

from experiment.rentals.book import Rental, Rentals

__all__ = ["Rental", "Rentals"]
