"""Looks: ledger, Cinder and hosts held against each other (docs/reconciliation.md).

What is drift, and when it is believed, is `handlers.drift`, as data and pure functions; here is
who reads whom, in which order, how much at once, and how what was seen becomes findings.
"""
