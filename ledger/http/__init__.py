"""The HTTP API: Nova's form at /v2.1, our own at /v1, what a deployment needs at the root.

`routes.py` is the table of contents.  A request passes the middlewares of `app.py` (request
id, errors, who is asking, microversion) and reaches its handler as a `Call`.  Handlers are
short and grouped by resource; errors are raised anywhere and shaped once, in `problem.py`.
"""
