"""Looks: the comparison of ledger, Cinder and hosts (docs/reconciliation.md).

`handlers.drift` defines drift and when it is confirmed, as data and pure functions.  This package
reads the parties: in which order, how much at once, and how differences become findings.
"""
