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
    """Guests as they are now, and those that are `gone`, since this epoch's agent told last.

    What is in neither is as it was.
    """

    epoch: Number
    guests: Annotated[tuple[Guest, ...], Meta(max_length=GUESTS_MAX)]
    gone: Annotated[tuple[Id, ...], Meta(max_length=GUESTS_MAX)]

    @classmethod
    def between(cls, epoch: int, before: tuple[Guest, ...], now: tuple[Guest, ...]) -> Self:
        """What makes an inventory of the one before it."""
        known = {guest.server_id: guest for guest in before}
        here = {guest.server_id for guest in now}
        return cls(
            epoch=epoch,
            guests=tuple(guest for guest in now if known.get(guest.server_id) != guest),
            gone=tuple(server_id for server_id in known if server_id not in here),
        )


def reported(before: tuple[Guest, ...], now: Guest | None) -> Guest | None:
    """What a report says of a guest; None: nothing is new, or it is not for a report to say.

    A definition is large, and no disk of a volume changes it.
    """
    known = next((each for each in before if now and each.server_id == now.server_id), None)
    if now is None or known in (None, now) or known.definition != now.definition:
        return None
    return replace(now, definition=None)


def with_reported(before: tuple[Guest, ...], guest: Guest) -> tuple[Guest, ...]:
    """What the ledger has been shown, once it has taken that of a report."""
    return tuple(
        replace(guest, definition=each.definition) if each.server_id == guest.server_id else each
        for each in before
    )
