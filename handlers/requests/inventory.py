"""What the ledger does with a host's inventory, guest by guest.

Both functions return False for a guest that a flow is changing: it was not examined, and has to be
reported again.  A guest on a host that is not its server's, and a disk of a volume that its server
does not have, are stored as signs (handlers.results.presence).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.operation import Operation
from aggregates.server import SeenDisks, Sighting
from aggregates.volume import Volume
from handlers.engine.plan import plan_of
from handlers.requests import grow
from handlers.results.meaning import Book
from handlers.results.presence import is_mapped
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.messages import Guest


def seen(host: str, guest: Guest, book: Book) -> bool:
    """The host shows this guest; begin the growths that waited for it, and those that a fence
    ended.
    """
    instance = book.get(Instance, guest.server_id)
    if instance.origin is not None:  # whose it is says where it is; yet what is shown is there
        keep_disks(host, guest.server_id, frozenset(guest.volumes), book)
        return True
    shows = book.get(Host, host)
    looked = instance.observe(
        name=guest.name,
        host=host,
        power_state=guest.power_state,
        disks=SeenDisks(guest.devices, guest.volumes),
        owner=(guest.project_id, guest.user_id),
        definition=_definition(guest.definition, instance),
        epoch=shows.epoch,
    )
    if shows.said_off and looked:
        instance.runs_on(host, shows.epoch)
    if instance.host == host:
        grow.begin_awaited(instance, book)
    return _sighted(host, guest, book) and looked


def _sighted(host: str, guest: Guest, book: Book) -> bool:
    """Store what the host shows and must not have; False: a flow may be changing it now."""
    instance = book.get(Instance, guest.server_id)
    if host not in instance.places:
        if host in _changing(instance, book):
            return False
        epoch = book.get(Host, host).epoch
        seen_there = Sighting(guest.power_state, tuple(guest.volumes), epoch)
        instance.see_elsewhere(host, seen_there)
    strange = {id_ for id_ in guest.volumes if not is_mapped(instance, host, id_)}
    changing = {id_ for id_ in strange if book.get(Volume, id_).works_for(guest.server_id)}
    keep_disks(host, guest.server_id, strange, book, undecided=changing)
    return not changing


def keep_disks(
    host: str,
    server_id: str,
    strange: AbstractSet[str],
    book: Book,
    undecided: AbstractSet[str] = frozenset(),
) -> None:
    """Store the volumes that the host shows in the guest and that must not be there.  Each volume
    has its sign, and the host knows which signs it gave, so that it can withdraw them.

    What is known of the `undecided` volumes stays.
    """
    here = book.get(Host, host)
    before = here.shown.get(server_id, frozenset())
    for volume_id in sorted(strange - undecided):
        book.get(Volume, volume_id).see(server_id, host, here.epoch)
    for volume_id in sorted(before - strange - undecided):
        book.get(Volume, volume_id).miss(server_id, host)
    here.see_disks(server_id, frozenset(strange - undecided | before & undecided))


def _changing(instance: Instance, book: Book) -> set[str | None]:
    """The hosts on which operations on the server work with its guest."""
    plans = [plan_of(book.get(Operation, claimant)) for claimant in instance.claims]
    return set().union(*(plan.hosts.values() for plan in plans))


def _definition(shown: str | None, instance: Instance) -> tuple[str, list[str]] | None:
    """The part of a host's definition that is stored: what it may decide for another host."""
    if shown is None:
        return None
    if shown == instance.definition and instance.dropped == []:
        return shown, []
    found = kept(shown)
    return found.definition, list(found.dropped)


def missed(host: str, server_id: str, book: Book) -> bool:
    """The host no longer shows this guest."""
    instance = book.get(Instance, server_id)
    keep_disks(host, server_id, set(), book)
    if instance.origin is not None:
        return True
    instance.miss_elsewhere(host)
    if instance.host != host:
        grow.begin_awaited(instance, book)
        return True
    return instance.observe(
        name=instance.name,
        host=host,
        power_state="nostate",
    )
