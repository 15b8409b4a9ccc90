"""What is shown of a refused request."""

from __future__ import annotations

from datetime import datetime

from ledger.http.schemas import Shown


class RefusalShown(Shown):
    """A request that was refused and changed nothing; `message` is what its sender was told.

    `route`: the name of what was asked for, as in docs/reference.md.  `address`, `agent`: from
    where it came, and by what program.  `left_out`: in the hour before, so many more that this
    asker was refused were not kept.
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
    address: str | None = None
    agent: str | None = None
    left_out: int | None = None
