"""/v1/find as data: what somebody may mean by the beginning of an id, or by a name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from ledger.http.schemas import Asked, Shown


class FindableKind(StrEnum):
    """What has an id, or a name that can stand for it."""

    SERVER = "server"
    VOLUME = "volume"
    ATTACHMENT = "attachment"
    OPERATION = "operation"
    FINDING = "finding"
    REMNANT = "remnant"
    LOOK = "look"
    HOST = "host"
    REQUEST = "request"


class FindQuery(Asked):
    """`text`: an id, the first four or more characters of one, or a name.

    Of a request (`req-...`), be it this service's or that of another service that passed it on:
    what it led to is found, or that it was refused.
    """

    text: Annotated[str, StringConstraints(min_length=1, max_length=255)]


class FoundThing(Shown):
    """`id`: a host's is its name.  `name`: of a refused request why, as its code."""

    kind: FindableKind
    id: str
    name: str | None


class FoundThings(Shown):
    """At most ten of each kind; of two that fit neither is preferred."""

    found: list[FoundThing]
