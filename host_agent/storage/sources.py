"""Checks whether a guest's disk uses the device that this host has connected for it.

A label (the serial) says which volume a disk is to be, and anybody can copy it.  Where the data is
says which one it is: the device, file or image that this host's record of the connection names, by
whichever of its names.  What is not certain is said to be unknown, and never to be another's:
* a definition alone may call a device by a name of an earlier life of the host, which another one
  has now, so there only files and images tell (`certain`);
* a device that is not there cannot be compared with one that is;
* the same file may be seen by another mount of its share;
* Cinder's own snapshots put files above a volume's, and a fence may end one before this host has
  recorded it (decision 0078).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from host_agent.storage.names import path_of
from host_agent.storage.port import StorageView
from host_agent.storage.records import Record

_DEVICES = "/dev/"
#: As Cinder calls files and images of volumes, and files above them, unless it is told otherwise.
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: As it calls a file above: of a snapshot's id.
_ABOVE = re.compile(rf"(volume-{_UUID})\.{_UUID}")
_OF_A_VOLUME = re.compile(rf"(?:.*/)?volume-({_UUID})(\.[\w-]+)?")


def certain(sources: Iterable[str], *, live: bool) -> tuple[str, ...]:
    """Those that tell where the data is."""
    return tuple(each for each in sources if live or not each.startswith(_DEVICES))


def elsewhere(sources: Sequence[str], records: Iterable[Record], view: StorageView) -> bool | None:
    """Whether one of the disk's certain sources is none of what its records lead to; None: that
    cannot be said.
    """
    records = list(records)
    known = {place for record in records for place in record.places}
    if not sources or not known:
        return None
    unknown = False
    for source in set(sources) - known:
        own, theirs = view.names(source), [view.names(place) for place in known]
        if own and not own.isdisjoint(frozenset().union(*theirs)):
            continue
        comparable = own and all(theirs) and all(record.is_whole for record in records)
        if comparable and not any(_may_be_one(source, place) for place in known):
            return True
        unknown = True
    return None if unknown else False


def _may_be_one(source: str, known: str) -> bool:
    """Whether it may be the same file, or one that Cinder has put above that."""
    one, other = posixpath.basename(source), posixpath.basename(known)
    above = _ABOVE.fullmatch(one)
    return one == other or (
        above is not None
        and other.partition(".")[0] == above[1]
        and posixpath.dirname(source) == posixpath.dirname(known)
    )


def is_same(one: str, other: str, view: StorageView) -> bool:
    """Whether both are one device, and not two paths of its disk; or a file by the same server."""
    if one.startswith(_DEVICES):
        return view.place(one) == view.place(other)
    return not view.names(one).isdisjoint(view.names(other))


def is_recorded(
    sources: Sequence[str], records: Iterable[Record], view: StorageView
) -> bool | None:
    """Whether a disk is on what its records lead to, and that is what they connected."""
    records = list(records)
    other = elsewhere(sources, records, view)
    if other is None or other:
        return None if other is None else False
    return not any(_is_changed(source, records, view) for source in sources)


def _is_changed(path: str, records: Iterable[Record], view: StorageView) -> bool:
    """Whether the device by which a volume was connected is another disk by now."""
    connected = [
        (device, info)
        for record in records
        for device, info in record.connected_as
        if path_of(device) == path
    ]
    told = [view.is_of(device, info) for device, info in connected]
    return bool(told) and all(each is False for each in told)


def by_name(records: Iterable[Record], view: StorageView) -> dict[str, str]:
    """The volumes that are connected by these records, by each name of where their data is."""
    return {
        name: record.volume_id
        for record in records
        for place in (*record.paths, *record.names)
        for name in {place, *view.names(place)}
    }


def volume_behind(source: str, volumes: Mapping[str, str], view: StorageView) -> str | None:
    """The volume whose data is there: of those `by_name`, or by its own name on storage."""
    for name in (source, *view.names(source)):
        if name in volumes:
            return volumes[name]
    named = _OF_A_VOLUME.fullmatch(source)
    return named[1] if named and view.is_shared(source) else None
