"""What all that is asked and answered is made of: ids, positions, moments; and the probes' answers.

Requests know no keys but theirs.  Answers are made of rows: a model picks the columns that are
shown, and gives them their documented types.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from aggregates.catalogue import TOPICS
from host_agent.shared.contract import HOST_NAME
from ledger.config import PAGE_ITEMS_MAX
from ledger.http.call import HOLD_S_MAX

_UUID = re.compile(r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
POSITION_MAX = 2**63 - 1


def _lower(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError("It is not a UUID.")
    return text.lower()


def _digits(value: Any) -> Any:
    """Numbers of a query are plain digits (int() would take ' 1_0 ')."""
    if isinstance(value, str):
        if not re.fullmatch(r"\d{1,19}", value, re.ASCII):
            raise ValueError("a whole number of 0 or more is wanted, in 19 digits at most")
        return int(value)
    return value


def _known_topic(value: str) -> str:
    if value not in TOPICS:
        raise ValueError("no event is called that: docs/events.md has all of them")
    return value


def _plus(value: Any) -> Any:
    """A '+' of a time zone that a client did not quote arrives as a space."""
    return re.sub(r" (\d\d:?\d\d)$", r"+\1", value) if isinstance(value, str) else value


Id = Annotated[
    str,
    AfterValidator(_lower),
    Field(json_schema_extra={"format": "uuid", "pattern": _UUID.pattern}),
]
HostName = Annotated[str, StringConstraints(pattern=f"^{HOST_NAME}$")]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True)]
# The bounds come first: behind a function pydantic would leave them out of the document.
Position = Annotated[int, Field(ge=0, le=POSITION_MAX), BeforeValidator(_digits)]
Limit = Annotated[int, Field(ge=1, le=PAGE_ITEMS_MAX), BeforeValidator(_digits)]
Instant = Annotated[AwareDatetime, BeforeValidator(_plus)]
Topic = Annotated[str, AfterValidator(_known_topic)]
WaitS = Annotated[float, Field(ge=0, le=HOLD_S_MAX, allow_inf_nan=False)]


class Asked(BaseModel):
    """A query or a body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Shown(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ReadyQuery(Asked):
    """`neighbours`: whether a check of Cinder or Keystone makes it fail, too."""

    neighbours: bool = True


class Health(Shown):
    """`status` is "ok" or "failing"; a check says what is wrong, null if nothing is."""

    status: Literal["ok", "failing"]
    checks: dict[str, str | None]
    warnings: list[str] = []  # what keeps nobody from working, and is to be mended


class Leftovers(Shown):
    """Guests and attachments that a host still has and must release."""

    guests: list[UUID] = []
    attachments: list[UUID] = []


class BlockedBy(Shown):
    """The operation in the way of a request, and what may be done about it."""

    operation_id: UUID
    flow: str
    state: str
    acts: list[str]


class Problem(Shown):
    """RFC 9457 problem details; `code` is stable, `detail` for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    operation: str | None = None
    blocked_by: BlockedBy | None = None
    hint: str | None = None
