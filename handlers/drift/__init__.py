"""Drift: what the ledger, Cinder and the hosts say differently, and no operation explains.

`rows` are what is compared, each one subject with what every party says of it; `classes` is the
table of what can differ; `judge` says which of it is found, and when it is believed.  All pure:
who looks, and when, is `ledger.reconcile`.
"""
