"""Makes a survey: what this host has, when the ledger asks (decision 0056).

Theory of operation.  Each part is read in its own thread, all at once.  A part without an answer at
the limit is unreadable (blind), so a hypervisor that hangs blocks only the thread that reads it.
While that thread exists the part stays blind, so there is never more than one thread for each.
What it returns at last is from another moment, and is dropped.

To decide which record explains what storage shows, and which guest uses it, needs all three parts:
if guests or records are blind, so is storage.  Runs continue meanwhile.  A record exists from
before its device is connected until after it is disconnected.  So records are read before storage
and again after it; then one of them explains what was connected in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from host_agent.shared.contract.ports import Guests, PortError
from host_agent.shared.contract.survey import (
    CONNECTIONS,
    GUESTS,
    ITEMS_MAX,
    PARTS,
    SECRETS,
    STORAGE,
    TEXT_CHARS_MAX,
    ConnectionShown,
    DiskShown,
    GuestShown,
    GuestsShown,
    Opened,
    Part,
    StorageShown,
    Survey,
    UnlabelledShown,
    disks_of,
)
from host_agent.shared.platform.masking import mask
from host_agent.shared.platform.text import one_line
from host_agent.storage.port import Storage, StorageView
from host_agent.storage.records import Record
from host_agent.storage.sources import by_name, certain, is_recorded, volume_behind

#: Two more questions: the sizes of guests' disks, and which devices are another volume by now.
#: They need answers of each QEMU and of storage, so they have a shorter limit, and no part depends
#: on them.
SIZES, OTHERS, ASKED_S_MAX = "sizes", "others", 5.0
#: The limit of all parts together, in seconds; a part without an answer by then is unreadable.
LOOK_S_MAX = 20.0
#: The keys of connection information that name a target, a subsystem, a share or a disk.
_NAMES = ("target_iqn", "target_iqns", "nqn", "target_nqn", "export", "multipath_id", "scsi_wwn")


@dataclass(frozen=True, kw_only=True)
class PartSeen:
    """What was read of one part; `why`: why it is not complete."""

    seen: Any = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What storage showed, and the records from before that."""

    before: Sequence[Record]
    view: StorageView


class Surveyor:
    """Surveys one host.  Not thread-safe."""

    def __init__(
        self,
        guests: Guests,
        records: Mapping[str, Record],
        storage: Storage,
        boot_id: str,
        limit_s: float = LOOK_S_MAX,
    ) -> None:
        self._boot_id = boot_id
        self._limit_s = limit_s
        self._ask = questions(guests, records, storage)
        self._under_way: dict[str, Future[PartSeen]] = {}

    def survey(self, epoch: int) -> Survey:
        """The host as it is now; never raises for an unreadable part."""
        end = time.monotonic() + self._limit_s
        looks: dict[str, PartSeen] = {}
        for side_by_side in ((SIZES, OTHERS, GUESTS, STORAGE, SECRETS), (CONNECTIONS,)):
            begun = {part: self._begun(part) for part in side_by_side}
            sooner = min(end, time.monotonic() + ASKED_S_MAX)
            looks |= {
                part: self._looked(future, end if part in PARTS else sooner)
                for part, future in begun.items()
            }
        return assembled(self._boot_id, epoch, looks)

    def _begun(self, part: str) -> Future[PartSeen] | None:
        before = self._under_way.get(part)
        if before is not None and not before.done():
            return None
        future = self._under_way[part] = Future()
        # No pool: at its end the process would wait for the pool's threads, and this one may hang.
        answer = partial(_answer, future, self._ask[part])
        threading.Thread(target=answer, name=f"survey-{part}", daemon=True).start()
        return future

    def _looked(self, future: Future[PartSeen] | None, end: float) -> PartSeen:
        if future is None:
            return PartSeen(why="the look before has not ended yet")
        try:
            return future.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            return PartSeen(why=f"it was not seen in {self._limit_s:g} s")


def _answer(future: Future[PartSeen], ask: Callable[[], PartSeen]) -> None:
    future.set_result(ask())


def questions(
    guests: Guests, records: Mapping[str, Record], storage: Storage
) -> dict[str, Callable[[], PartSeen]]:
    """By part: the function that reads it; none of them raises."""
    asked: dict[str, Callable[[], PartSeen]] = {
        GUESTS: lambda: PartSeen(seen=guests.survey()),
        CONNECTIONS: lambda: recorded(records),
        STORAGE: lambda: PartSeen(seen=Stored(before=recorded(records).seen, view=storage.look())),
        SECRETS: lambda: PartSeen(seen=guests.secrets()),
        SIZES: lambda: PartSeen(seen=guests.sizes()),
        OTHERS: lambda: PartSeen(seen=storage.others(_paths(recorded(records).seen))),
    }
    return {part: partial(_seen, ask) for part, ask in asked.items()}


def _paths(records: Iterable[Record]) -> Iterator[str]:
    return (path for record in records for path in record.paths)


def _seen(ask: Callable[[], PartSeen]) -> PartSeen:
    try:
        return ask()
    except PortError as error:
        return PartSeen(why=error.message)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this part is unreadable
        return PartSeen(why=f"{type(error).__name__}: {error}")


def recorded(records: Mapping[str, Record]) -> PartSeen:
    """All records that can be read, without those that are removed meanwhile."""
    found, why = [], None
    for attachment_id in records:
        try:
            found.append(records[attachment_id])
        except KeyError:
            continue
        except PortError as error:
            why = error.message
    return PartSeen(seen=found, why=why)


# --- assembly: pure, except for what the view of storage looks up ---------------------------------


def assembled(boot_id: str, epoch: int, looks: Mapping[str, PartSeen]) -> Survey:
    """The survey from the parts."""
    guests: GuestsShown | None = looks[GUESTS].seen
    records: list[Record] = looks[CONNECTIONS].seen or []
    stored: Stored | None = looks[STORAGE].seen
    view = stored.view if stored else None
    sources = guests.sources if guests else None
    in_guests = None if sources is None or view is None else frozenset(map(view.place, sources))
    connections = [_connection(record, view, in_guests) for record in records]
    why = {part: look.why for part, look in looks.items() if part in PARTS and look.why is not None}
    storage: list[StorageShown] = []
    if GUESTS in why or CONNECTIONS in why:
        why.setdefault(STORAGE, "without guests and records it cannot be said what is used")
    elif stored is not None and guests is not None:
        every = [*stored.before, *records]
        storage = _storage(stored.view, every, in_guests or frozenset())
        changed = frozenset(map(stored.view.place, looks[OTHERS].seen or ()))
        guests = compared(guests, every, stored.view, looks[SIZES].seen or {}, changed)
    survey = Survey(
        boot_id=boot_id,
        epoch=epoch,
        guests=tuple(map(_showable, guests.guests)) if guests else (),
        connections=tuple(sorted(connections, key=lambda each: each.attachment_id)),
        storage=tuple(storage),
        secrets=tuple(looks[SECRETS].seen or ()),
        blind=(),
        why_blind=(),
    )
    return _bounded(survey, why)


def compared(
    guests: GuestsShown,
    records: Sequence[Record],
    view: StorageView,
    sizes: Mapping[tuple[str, str], int],
    changed: frozenset[str] = frozenset(),
) -> GuestsShown:
    """The guests, with their disks compared by their sources, whatever their serials are.

    `changed`: the devices that are another volume by now.
    """
    of_disk: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        of_disk.setdefault((record.server_id, record.serial), []).append(record)
    volumes = by_name(records, view)
    labelled: dict[tuple[str, str], DiskShown] = {}
    others: dict[str, list[UnlabelledShown]] = {}
    shown = {
        (guest.server_id, disk.serial): disk for guest in guests.guests for disk in guest.disks
    }
    for disk in guests.opened:
        sources = certain(disk.sources, live=disk.live)
        if disk.serial is None:
            others.setdefault(disk.server_id, []).extend(_unlabelled(disk, sources, volumes, view))
            continue
        key = (disk.server_id, disk.serial)
        is_other = not changed.isdisjoint(map(view.place, sources))
        labelled[key] = replace(
            shown[key],
            recorded=not is_other and is_recorded(sources, of_disk.get(key, ()), view),
            size_bytes=sizes.get((disk.server_id, disk.target)) if disk.live else None,
            device_bytes=view.size(sources[0]) if disk.live and sources else None,
        )
    found = (
        replace(
            guest,
            disks=tuple(labelled[guest.server_id, disk.serial] for disk in guest.disks),
            unlabelled=tuple(others.get(guest.server_id, ())),
        )
        for guest in guests.guests
    )
    return replace(guests, guests=tuple(found))


def _unlabelled(
    disk: Opened, sources: Sequence[str], volumes: Mapping[str, str], view: StorageView
) -> Iterator[UnlabelledShown]:
    for source in sources:
        if (volume_id := volume_behind(source, volumes, view)) is not None:
            yield UnlabelledShown(target=disk.target, source=source, volume_id=volume_id)
            return


def _connection(
    record: Record, view: StorageView | None, in_guests: frozenset[str] | None
) -> ConnectionShown:
    present = used = None
    if view is not None:
        devices = [view.present(device, info) for device, info in record.connected_as]
        known = [each for each in devices if each is not None]
        present = any(known) if known else None
        used = _is_used(record, view, in_guests)
    return ConnectionShown(
        attachment_id=record.attachment_id,
        volume_id=record.volume_id,
        server_id=record.server_id,
        serial=record.serial,
        present=present,
        used=used,
    )


def _is_used(record: Record, view: StorageView, in_guests: frozenset[str] | None) -> bool | None:
    """None: the record has no path, or guests were unreadable."""
    places = {view.place(path) for path in record.paths}
    if any(view.held(place) for place in places):
        return True
    places.update(record.names)
    if in_guests is None or not places:
        return None
    return not in_guests.isdisjoint(places)


def _names(record: Record) -> set[str]:
    names = [
        each.get(name) for each in (*record.infos, *record.devices.values()) for name in _NAMES
    ]
    lists = [each if isinstance(each, (list, tuple)) else [each] for each in names if each]
    return {str(name) for each in lists for name in each}


def _storage(
    view: StorageView, records: Sequence[Record], in_guests: frozenset[str]
) -> list[StorageShown]:
    places = frozenset(map(view.place, _paths(records)))
    names = places.union(*map(_names, records))
    return merged(
        StorageShown(
            kind=thing.kind,
            name=showable(thing.name),
            recorded=thing.name in names or thing.reaches(places),
            used=thing.held or thing.reaches(in_guests),
            faulty=thing.faulty,
        )
        for thing in view.things
    )


def merged(storage: Iterable[StorageShown]) -> list[StorageShown]:
    """One for each name: a target with two portals has two sessions, and works if one does."""
    found: dict[tuple[str, str], StorageShown] = {}
    for each in storage:
        key = (each.kind, each.name)
        before = found.get(key, each)
        found[key] = replace(
            each,
            recorded=each.recorded or before.recorded,
            used=each.used or before.used,
            faulty=each.faulty and before.faulty,
        )
    return [found[key] for key in sorted(found)]


def _showable(guest: GuestShown) -> GuestShown:
    disks = (replace(disk, source=disk.source and showable(disk.source)) for disk in guest.disks)
    others = guest.unlabelled
    if others is not None:
        others = tuple(replace(disk, source=showable(disk.source)) for disk in others)
    return replace(guest, disks=tuple(disks), unlabelled=others)


def showable(text: str) -> str:
    """The text to send: secrets masked, control characters escaped, bounded."""
    return one_line(mask(text))[:TEXT_CHARS_MAX]


def _bounded(survey: Survey, why: dict[Part, str]) -> Survey:
    """Cut lists to ITEMS_MAX; a part that was cut counts as unreadable."""
    kept: dict[str, Any] = {}
    for part in PARTS:
        items = getattr(survey, part)
        sizes = [disks_of(item) for item in items] if part == GUESTS else []
        if max(len(items), sum(sizes)) > ITEMS_MAX:
            why.setdefault(part, f"there is more of it than {ITEMS_MAX}")
            items = _first(items, sizes or [1] * len(items))
        kept[part] = items
    blind = [part for part in PARTS if part in why]
    return replace(
        survey, **kept, blind=tuple(blind), why_blind=tuple(showable(why[part]) for part in blind)
    )


def _first(items: tuple[Any, ...], sizes: list[int]) -> tuple[Any, ...]:
    """The first items that have at most ITEMS_MAX together."""
    total, count = 0, 0
    for size in sizes[:ITEMS_MAX]:
        total += size
        if total > ITEMS_MAX:
            break
        count += 1
    return items[:count]
