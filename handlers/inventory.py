"""What a host shows of its guests, guest by guest: what the ledger makes of it.

Both return False for what was not looked at, because a flow is just changing it: it has to be
reported again.
"""

from __future__ import annotations

from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.server import SeenDisks
from handlers import grow
from handlers.meaning import Book
from host_agent.shared.contract import Guest
from host_agent.shared.guest_xml import kept


def seen(host: str, guest: Guest, book: Book) -> bool:
    """The host shows this guest; what it was to hear of, and a fence kept from it, is begun."""
    instance = book.get(Instance, guest.server_id)
    looked = instance.observe(
        name=guest.name,
        host=host,
        power_state=guest.power_state,
        disks=SeenDisks(guest.devices, guest.volumes),
        owner=(guest.project_id, guest.user_id),
        definition=_definition(guest.definition, instance),
        epoch=book.get(Host, str(host_uuid(host))).epoch,
    )
    if instance.host == host:
        grow.begin_awaited(instance, book)
    return looked


def _definition(shown: str | None, instance: Instance) -> tuple[str, list[str]] | None:
    """What is kept of the definition that a host shows: what it may decide for another one."""
    if shown is None:
        return None
    if shown == instance.definition and instance.dropped == []:
        return shown, []
    found = kept(shown)
    return found.definition, list(found.dropped)


def missed(host: str, server_id: str, book: Book) -> bool:
    """The host does not show this guest any more."""
    instance = book.get(Instance, server_id)
    if instance.host != host:
        return True
    return instance.observe(
        name=instance.name,
        host=host,
        power_state="nostate",
    )
