"""Which hosts are known, and whose agents are in contact."""

from __future__ import annotations

from datetime import datetime

from handlers.requests.guards import Contact
from ledger.http.components import Components
from ledger.http.problem import ApiError, not_found


def is_alive(components: Components, seen_at: datetime | None) -> bool:
    """Whether an agent that was last in contact then counts as in contact.

    Contacts have the database's clock; one in the future is from before the clock was set back.
    """
    if seen_at is None:
        return False
    silent_s = abs(components.clock() - seen_at.timestamp())
    return silent_s < components.settings.host_down_after_s


async def contact_of(components: Components, name: str) -> Contact:
    """Whether the host's agent was in contact lately."""
    return contact_at(components, await components.queries.seen_at(name))


def contact_at(components: Components, seen_at: datetime | None) -> Contact:
    """The state of an agent that was last in contact then."""
    since = seen_at.isoformat(timespec="seconds") if seen_at else "ever"
    return Contact(alive=is_alive(components, seen_at), since=since)


def unknown_host(name: str) -> ApiError:
    """No agent has ever registered for it."""
    return not_found("host_not_found", f"No agent has registered for host {name}.")
