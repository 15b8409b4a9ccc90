"""The service: everything that touches the outside, put together in `bootstrap`.

`api` lets requests in, `requests` decides and saves them, `service` takes what hosts report
and operators do, `dispatcher` does the ledger's own steps (`effects`), `store` and `writer`
keep the log, `wakeups` tell who waits.  `cli` is for people, `simulation`, `embedded` and
`demo` are for trying it out.
"""
