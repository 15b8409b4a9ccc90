"""Reads over the projections and the log: one method a question."""
