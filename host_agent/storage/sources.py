"""Checks whether a guest's disk uses the device that this host has connected for it.

The serial says which volume a disk should be, and anybody can copy it.  The source says which one
it is: the device, file or image in this host's connection record, by any of its names.  What is not
certain counts as unknown, and never as another volume's:
* a definition may have a device name from before a reboot, which is another device now, so for a
  guest that is off only files and images count (`certain`);
* a missing device cannot be compared with a present one;
* the same file may be seen through another mount of its share;
* Cinder's snapshots put files above a volume's file, and a fence may end one before this host has
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
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: Cinder's default names: a file above a volume's has the snapshot's id; then a volume's own.
_ABOVE = re.compile(rf"(volume-{_UUID})\.{_UUID}")
_OF_A_VOLUME = re.compile(rf"(?:.*/)?volume-({_UUID})(\.[\w-]+)?")


def certain(sources: Iterable[str], *, live: bool) -> tuple[str, ...]:
    """The sources that are certain: all of a live disk, else only files and images."""
    return tuple(each for each in sources if live or not each.startswith(_DEVICES))


def elsewhere(sources: Sequence[str], records: Iterable[Record], view: StorageView) -> bool | None:
    """Whether one of the disk's certain sources is none of its records'; None: unknown."""
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
    """Whether it may be the same file, or a snapshot of Cinder's above it."""
    one, other = posixpath.basename(source), posixpath.basename(known)
    above = _ABOVE.fullmatch(one)
    return one == other or (
        above is not None
        and other.partition(".")[0] == above[1]
        and posixpath.dirname(source) == posixpath.dirname(known)
    )


def is_same(one: str, other: str, view: StorageView) -> bool:
    """Whether both are one device (not two paths of a disk), or one file of the same server."""
    if one.startswith(_DEVICES):
        return view.place(one) == view.place(other)
    return not view.names(one).isdisjoint(view.names(other))


def is_recorded(
    sources: Sequence[str], records: Iterable[Record], view: StorageView
) -> bool | None:
    """Whether the sources are what the records connected, and unchanged since; None: unknown."""
    records = list(records)
    other = elsewhere(sources, records, view)
    if other is None or other:
        return None if other is None else False
    return not any(_is_changed(source, records, view) for source in sources)


def _is_changed(path: str, records: Iterable[Record], view: StorageView) -> bool:
    """Whether the device of a connection is another disk now."""
    connected = [
        (device, info)
        for record in records
        for device, info in record.connected_as
        if path_of(device) == path
    ]
    told = [view.is_of(device, info) for device, info in connected]
    return bool(told) and all(each is False for each in told)


def by_name(records: Iterable[Record], view: StorageView) -> dict[str, str]:
    """The volumes of these records, by all names of their sources."""
    return {
        name: record.volume_id
        for record in records
        for place in (*record.paths, *record.names)
        for name in {place, *view.names(place)}
    }


def volume_behind(source: str, volumes: Mapping[str, str], view: StorageView) -> str | None:
    """The volume at a source: from `by_name`, or by Cinder's name of the file or image."""
    for name in (source, *view.names(source)):
        if name in volumes:
            return volumes[name]
    named = _OF_A_VOLUME.fullmatch(source)
    return named[1] if named and view.is_shared(source) else None
