"""Changes of a host's guests between registrations, as its agent sends them: separately, or for one
guest in the report of the run that changed it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

from msgspec import Meta

from host_agent.shared.contract.messages import GUESTS_MAX, Guest
from host_agent.shared.contract.wire import Id, Number


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The guests that have changed, and the ids of those that are `gone`, since the last message of
    this epoch.  A guest in neither is unchanged.
    """

    epoch: Number
    guests: Annotated[tuple[Guest, ...], Meta(max_length=GUESTS_MAX)]
    gone: Annotated[tuple[Id, ...], Meta(max_length=GUESTS_MAX)]

    @classmethod
    def between(cls, epoch: int, before: tuple[Guest, ...], now: tuple[Guest, ...]) -> Self:
        """The difference between two inventories."""
        known = {guest.server_id: guest for guest in before}
        here = {guest.server_id for guest in now}
        return cls(
            epoch=epoch,
            guests=tuple(guest for guest in now if known.get(guest.server_id) != guest),
            gone=tuple(server_id for server_id in known if server_id not in here),
        )


def reported(before: tuple[Guest, ...], now: Guest | None) -> Guest | None:
    """The guest for a report; None: it is unchanged, unknown, or its definition has changed too.

    Without its definition, which is large, and which a volume's disk does not change.
    """
    known = next((each for each in before if now and each.server_id == now.server_id), None)
    if now is None or known in (None, now) or known.definition != now.definition:
        return None
    return replace(now, definition=None)


def with_reported(before: tuple[Guest, ...], guest: Guest) -> tuple[Guest, ...]:
    """The inventory that the ledger has after a report with this guest."""
    return tuple(
        replace(guest, definition=each.definition) if each.server_id == guest.server_id else each
        for each in before
    )
