"""What a host shows of its guests, guest by guest: what the ledger makes of it.

Both return False for what was not looked at, because a flow is just changing it: it has to be
reported again.  A guest on a host that is not its server's, and a disk of a volume that its server
does not have, are kept as signs that they are there (handlers.requests.presence).
"""

from __future__ import annotations

from collections.abc import Sequence

from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.operation import Operation
from aggregates.server import SeenDisks, Sighting
from aggregates.volume import Volume
from handlers.requests import grow
from handlers.requests.presence import is_mapped
from handlers.results.meaning import Book
from handlers.results.progress import plan_of
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.messages import Guest


def seen(host: str, guest: Guest, book: Book) -> bool:
    """The host shows this guest; what it was to hear of, and a fence kept from it, is begun."""
    instance = book.get(Instance, guest.server_id)
    if instance.origin is not None:
        return True  # whose it is says where it is
    before = instance.shown_on(host)
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
    return _sighted(host, guest, before, book) and looked


def _sighted(host: str, guest: Guest, before: Sequence[str], book: Book) -> bool:
    """Keep what the host shows and is not to have; False: a flow may just be changing it."""
    instance = book.get(Instance, guest.server_id)
    epoch = book.get(Host, str(host_uuid(host))).epoch
    if host not in instance.places:
        if host in _changing(instance, book):
            return False
        instance.see_elsewhere(host, Sighting(guest.power_state, tuple(guest.volumes), epoch))
    settled = True
    for volume_id in guest.volumes:
        if is_mapped(instance, host, volume_id):
            continue
        volume = book.get(Volume, volume_id)
        if volume.works_for(guest.server_id):
            settled = False
        else:
            volume.see(guest.server_id, host, epoch)
    for volume_id in set(before) - set(guest.volumes):
        book.get(Volume, volume_id).miss(guest.server_id, host)
    return settled


def _changing(instance: Instance, book: Book) -> set[str | None]:
    """The hosts on which operations on the server are at work with its guest."""
    plans = [plan_of(book.get(Operation, claimant)) for claimant in instance.claims]
    return set().union(*(plan.hosts.values() for plan in plans))


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
    if instance.origin is not None:
        return True
    for volume_id in instance.shown_on(host):
        book.get(Volume, volume_id).miss(server_id, host)
    instance.miss_elsewhere(host)
    if instance.host != host:
        if not instance.is_unaccounted:
            grow.begin_awaited(instance, book)
        return True
    return instance.observe(
        name=instance.name,
        host=host,
        power_state="nostate",
    )
