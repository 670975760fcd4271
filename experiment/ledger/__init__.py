"""The ledger: append-only, hash-chained, exactly once."""

from experiment.ledger.ledger import Ledger, RunRow
from experiment.ledger.lock import JobLock, hold, is_held
from experiment.ledger.once import Controller, Evidence, Mismatch

__all__ = ["Controller", "Evidence", "JobLock", "Ledger", "Mismatch", "RunRow", "hold", "is_held"]
