"""The service: everything that does I/O, composed in `bootstrap`.

`http` receives requests and routes them to `nova`, `native` and `agents`; `auth` authenticates and
authorises.  `core` decides and runs the ledger's own steps.  `log` stores the events, `upkeep` is
long work on them.  `reconcile` finds drift.  `cli` and `web` are the command line and the console.
docs/architecture.md has the other packages.
"""
