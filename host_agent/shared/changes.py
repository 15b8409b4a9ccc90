"""What has changed of a host's guests, as its agent tells it between registrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from host_agent.shared.contract import Guest
from host_agent.shared.wire import WireError


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Guests as they are now, and those that are `gone`, since this epoch's agent told last.

    What is in neither is as it was.
    """

    epoch: int
    guests: tuple[Guest, ...] = ()
    gone: tuple[str, ...] = ()

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

    def to_wire(self) -> dict[str, Any]:
        guests = [guest.to_wire() for guest in self.guests]
        return {"epoch": self.epoch, "guests": guests, "gone": list(self.gone)}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        epoch, guests, gone = (data.get(name) for name in ("epoch", "guests", "gone"))
        if type(epoch) is not int or not isinstance(guests, list) or not isinstance(gone, list):
            raise WireError("'epoch' is a number, and 'guests' and 'gone' are lists")
        return cls(epoch=epoch, guests=tuple(map(Guest.from_wire, guests)), gone=tuple(gone))
