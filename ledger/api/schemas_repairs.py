"""Repairs of what differs, as /v1 asks for them and answers."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import StringConstraints

from ledger.api.schemas import Asked, Reason, Shown

Name = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]


class RepairWanted(Asked):
    """`apply` false: a dry run.  `repair`: which one, where a class has two (attachment_lost)."""

    reason: Reason
    apply: bool = False
    repair: Name | None = None


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
