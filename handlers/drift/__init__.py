"""Drift: differences between the ledger, Cinder and the hosts that no operation explains.

`rows` defines what is compared: one row for each subject, with what each party shows.  `classes` is
the table of differences.  `judge` decides which of them become findings, and when a finding is
confirmed.  All of it is pure; `ledger.reconcile` reads the parties.
"""
