"""The service: everything that touches the outside, put together in `bootstrap`.

`api` lets requests in, `service` decides and saves them, `dispatcher` does the ledger's own
steps, `store` and `writer` keep the log, `wakeups` tell who waits.  `cli` is for people,
`simulation`, `embedded` and `demo` are for trying it out.
"""
