"""A Nova beside the ledger: read it and its Cinder by GET only, and record the changes.

Requests about Nova's servers are passed on to it.  `ledger.cli.survey` uses `reads`, too.
"""
