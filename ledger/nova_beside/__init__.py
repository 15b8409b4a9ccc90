"""Beside a Nova that runs: what it and its Cinder show is read, by GET alone, and what became of it
is recorded; requests for what is its are passed on.  `reads` is the survey's, too
(ledger.cli.survey).
"""
