"""Traces of operations, made from the log (decision 0075)."""
