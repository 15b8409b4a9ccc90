"""The service: everything that touches the outside, put together in `bootstrap`.

`api` takes requests, `requests` decides and saves them, `service` takes what hosts report
and operators do, `dispatcher` runs the ledger's own steps (`effects`), `log` keeps the events,
`upkeep` is long work on them, `wakeups` notifies who waits.  `auth` says who asks.  `cli` is for
people; `simulation` and `trial` are for trying it out.
"""
