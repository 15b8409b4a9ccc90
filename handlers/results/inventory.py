"""What a host shows of its guests, guest by guest: what the ledger makes of it.

Both return False for what was not looked at, because a flow is just changing it: it has to be
reported again.  A guest on a host that is not its server's, and a disk of a volume that its server
does not have, are kept as signs that they are there (handlers.requests.presence).
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
from handlers.requests.presence import is_mapped
from handlers.results.meaning import Book
from host_agent.shared.contract.guest_xml import kept
from host_agent.shared.contract.messages import Guest


def seen(host: str, guest: Guest, book: Book) -> bool:
    """The host shows this guest; what it was to hear of, and a fence kept from it, is begun."""
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
    """Keep what the host shows and is not to have; False: a flow may just be changing it."""
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
    """Keep which volumes the host shows in the guest that are not to be there, on both sides: each
    volume has its sign, and the host knows which signs it gave, to take them back one day.

    What was known of the `undecided` stays.
    """
    here = book.get(Host, host)
    before = here.shown.get(server_id, frozenset())
    for volume_id in sorted(strange - undecided):
        book.get(Volume, volume_id).see(server_id, host, here.epoch)
    for volume_id in sorted(before - strange - undecided):
        book.get(Volume, volume_id).miss(server_id, host)
    here.see_disks(server_id, frozenset(strange - undecided | before & undecided))


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
    keep_disks(host, server_id, set(), book)
    if instance.origin is not None:
        return True
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
