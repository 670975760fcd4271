"""Checks: doctor, preflight, acceptance. Each returns an outcome, never a bool."""
