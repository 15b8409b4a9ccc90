"""Keeps projections current: reads the log, folds events, writes rows, notifies waiters."""
