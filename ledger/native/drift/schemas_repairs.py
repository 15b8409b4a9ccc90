"""Repairs of what differs, as /v1 asks for them and answers."""

from __future__ import annotations

from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from ledger.config import PAGE_ITEMS_MAX
from ledger.http.schemas import Asked, HostName, Id, Position, Reason, Shown

Name = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]


class RepairStep(Shown):
    """`does`: the step in words; `place`: a host, or "ledger": the service itself."""

    step: str
    verb: str
    place: str
    does: str


class RepairProposed(Shown):
    """What `apply` would begin.

    `asks_again`: who is asked anew before anything is done; `hosts`: which hosts have a part in it;
    `differs`: by what evidence; `never`: what it does not do.
    """

    finding_id: UUID
    drift_class: str
    meaning: str
    flow: str
    steps: list[RepairStep]
    asks_again: list[str]
    hosts: list[str]
    differs: dict[str, Any]
    never: str


class RepairAccepted(Shown):
    """See the operation for what becomes of it."""

    finding_id: UUID
    operation_id: UUID


class ForgetWanted(Asked):
    """One server, or those of a `host`, by pages; `apply` false: a dry run.

    `after`: the `next` of the page before.
    """

    reason: Reason
    apply: bool = False
    server: Id | None = None
    host: HostName | None = None
    after: Position | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_ITEMS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.server is None) == (self.host is None):
            raise ValueError("give either 'server' or 'host'")
        return self


class OneForgotten(Shown):
    """A server whose guest has vanished: what would be done (dry run), or the operation that does
    it; or why not.
    """

    server_id: UUID
    finding_id: UUID
    plan: RepairProposed | None = None
    operation_id: UUID | None = None
    refused: str | None = None


class Forgotten(Shown):
    servers: list[OneForgotten]
    next: int | None
