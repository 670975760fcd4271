"""The typed description of one experiment: read, checked, frozen, hashed, planned."""

from experiment.contract.load import load_contract
from experiment.contract.model import Contract

__all__ = ["Contract", "load_contract"]
