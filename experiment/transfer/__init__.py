"""Bytes from here to a host: what is missing, and compared there."""
