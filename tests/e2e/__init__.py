"""Whole lives of small experiments, through real hosts."""
