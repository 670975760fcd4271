"""Prefect tasks: retries, timeouts, names and progress around one library function each."""
