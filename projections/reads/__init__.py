"""Queries of the projections and the log: one method for each question."""
