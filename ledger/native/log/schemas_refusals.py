"""What is shown of a refused request."""

from __future__ import annotations

from datetime import datetime

from ledger.http.schemas import Shown


class RefusalShown(Shown):
    """A request that was refused and changed nothing; `message` is what its sender was told.

    `route`: the name of what was asked for, as in docs/reference.md.
    """

    request_id: str
    global_request_id: str | None
    refused_at: datetime
    method: str
    route: str
    status: int
    code: str
    message: str
    actor: str
    user_id: str | None
    project_id: str | None
