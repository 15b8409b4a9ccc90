"""Drift: differences between the ledger, Cinder and the hosts that no operation explains.

`rows` has what is compared: one row for each subject, with what every party says about it.
`classes` is the table of what can differ.  `judge` decides which differences become findings, and
when a finding is confirmed.  All pure: `ledger.reconcile` reads the parties.
"""
