"""Keeping projections current: read the log, fold events, write rows, notify who waits."""
