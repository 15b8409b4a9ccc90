"""The HTTP API: /v2.1 in Nova's form, /v1 of the ledger, and health checks at the root.

`routes.py` is the table of contents.  A request passes the middlewares of `app.py` (request id,
errors, authentication, microversion) and reaches its handler as a `Call`.  Handlers are short and
grouped by resource.  Any code may raise an error; `problem.py` alone formats it.
"""
