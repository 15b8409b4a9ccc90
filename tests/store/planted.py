"""One difference of each class, put into a cloud for looks (tests.store.looking), and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import (
    ConnectionShown,
    DiskShown,
    GuestShown,
    StorageShown,
    UnlabelledShown,
)
from ledger.trial.cinder.model.rows import StoredAttachment
from tests.store.looking import HOST, Cloud

OTHER = "compute-2"
HERE, THERE, BOTH = frozenset({HOST}), frozenset({OTHER}), frozenset({HOST, OTHER})


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A difference: which server and volume it is at, and how it ends.

    `classes`: of which it is a case, and the hosts by whose word it is one of each; of what Cinder
    tells: the host where the volume is.
    """

    classes: Mapping[str, frozenset[str]]
    end: Callable[[], object]
    server: str | None = None
    volume: str | None = None


def _sound(cloud: Cloud) -> StoredAttachment:
    row = cloud.attached()
    cloud.shows(row, recorded=True, size_bytes=GIB, device_bytes=GIB)
    return row


def _planted(row: StoredAttachment, end: Callable[[], object], name: str) -> Planted:
    return Planted(classes={name: HERE}, end=end, server=row.instance, volume=row.volume_id)


# --- attachments and volumes ---------------------------------------------------------------------


def _another(
    name: str, shown: Mapping[str, Any], owner: str = "live"
) -> Callable[[Cloud], Planted]:
    """Cinder has another attachment of the volume, of its server, a deleted or a strange one."""

    def plant(cloud: Cloud) -> Planted:
        row, server = _sound(cloud), str(uuid4())
        if owner != "strange":
            server = str(row.instance) if owner == "live" else cloud.server(deleted=True)
        extra = cloud.in_cinder(row.volume_id, server, **shown)

        def end() -> None:
            cloud.model.drop_attachment(extra.id)
            cloud.model.volume(row.volume_id).status = "in-use"

        return _planted(row, end, name)

    return plant


def _in_cinder(name: str, **told: Any) -> Callable[[Cloud], Planted]:
    """Cinder tells something else of the attachment."""

    def plant(cloud: Cloud) -> Planted:
        row = _sound(cloud)
        cloud.db.execute(
            "UPDATE mappings SET device_name = 'vdb' WHERE attachment_id = %s", [row.id]
        )
        shown = cloud.model.attachments[row.id]
        before = {key: getattr(shown, key) for key in told}
        _set(shown, told)
        return _planted(row, lambda: _set(shown, before), name)

    return plant


def _set(shown: Any, told: dict[str, Any]) -> None:
    for key, value in told.items():
        setattr(shown, key, value)


def attachment_lost(cloud: Cloud) -> Planted:
    row = _sound(cloud)
    cloud.model.volume(row.volume_id).multiattach = True  # others may have it, too
    cloud.model.drop_attachment(row.id)
    beside = cloud.in_cinder(row.volume_id, None)  # by which the status of the volume fits
    cloud.model.volume(row.volume_id).status = "in-use"

    def end() -> None:
        cloud.model.drop_attachment(beside.id)
        cloud.model.put_attachment(row)
        cloud.model.volume(row.volume_id).status = "in-use"

    return _planted(row, end, "attachment_lost")


def attachment_unmapped(cloud: Cloud) -> Planted:
    row, other = _sound(cloud), cloud.attached()
    cloud.shows(other)
    cloud.db.execute("UPDATE mappings SET attachment_id = NULL WHERE attachment_id = %s", [row.id])

    def end() -> None:
        cloud.db.execute(
            "UPDATE mappings SET attachment_id = %s WHERE volume_id = %s", [row.id, row.volume_id]
        )

    return _planted(row, end, "attachment_unmapped")


def legacy_mapping(cloud: Cloud) -> Planted:
    row, change = _sound(cloud), "UPDATE attachments SET legacy = %s WHERE attachment_id = %s"
    cloud.db.execute(change, (True, row.id))
    return _planted(row, lambda: cloud.db.execute(change, (False, row.id)), "legacy_mapping")


def volume_gone(cloud: Cloud) -> Planted:
    row = _sound(cloud)
    volume = cloud.model.volumes.pop(row.volume_id)
    back = lambda: cloud.model.volumes.update({row.volume_id: volume})  # noqa: E731
    return _planted(row, back, "volume_gone")


def _volume(name: str, **told: Any) -> Callable[[Cloud], Planted]:
    """Cinder tells something else of the volume."""

    def plant(cloud: Cloud) -> Planted:
        row = _sound(cloud)
        volume = cloud.model.volume(row.volume_id)
        before = {key: getattr(volume, key) for key in told}
        _set(volume, told)
        return _planted(row, lambda: _set(volume, before), name)

    return plant


def volume_of_nobody(cloud: Cloud) -> Planted:
    volume = cloud.model.add_volume(metadata={"attachment_ledger": str(uuid4())})
    end = lambda: cloud.model.volumes.pop(volume.id)  # noqa: E731
    return Planted(classes={"volume_of_nobody": frozenset()}, volume=volume.id, end=end)


# --- guests and disks ----------------------------------------------------------------------------


def shown_as(classes: Mapping[str, frozenset[str]], **shown: Any) -> Callable[[Cloud], Planted]:
    """Hosts show guests of the server in these power states (`here`, `there`), instead of one.

    `ledger`: what the ledger has of the server.
    """

    def plant(cloud: Cloud) -> Planted:
        row = _sound(cloud)
        guest = cloud.guests[HOST].pop()
        _change(cloud, row.instance, shown.get("ledger", {}))
        for name, host in (("here", HOST), ("there", OTHER)):
            if power := shown.get(name):
                disks = guest.disks if host == HOST else ()
                each = replace(guest, power_state=PowerState(power), disks=disks)
                cloud.guests.setdefault(host, []).append(each)

        def end() -> None:
            for guests in cloud.guests.values():
                guests[:] = [each for each in guests if each.server_id != row.instance]
            if "deleted" not in shown.get("ledger", {}):
                cloud.guests[HOST].append(guest)
            if "resize_source" in shown.get("ledger", {}):
                off = replace(guest, power_state=PowerState.SHUTDOWN, disks=())
                cloud.guests.setdefault(OTHER, []).append(off)

        return Planted(classes=classes, end=end, server=row.instance, volume=row.volume_id)

    return plant


def _change(cloud: Cloud, server: str | None, told: dict[str, Any]) -> None:
    if "resize_source" in told:
        cloud.db.execute(
            "UPDATE instances SET resize_source = %s WHERE server_id = %s", (OTHER, server)
        )
    if "deleted" in told:
        for table in ("mappings", "attachments"):
            cloud.db.execute(f"DELETE FROM {table} WHERE server_id = %s", [server])
        cloud.db.execute("UPDATE instances SET deleted = true WHERE server_id = %s", [server])
        for id_, each in list(cloud.model.attachments.items()):
            if each.instance == server:
                cloud.model.drop_attachment(id_)
        for host in cloud.connections.values():
            host[:] = [each for each in host if each.server_id != server]


def _disk(name: str, **shown: Any) -> Callable[[Cloud], Planted]:
    """The guest shows its disk otherwise."""
    return _of_guest(name, lambda guest: replace(guest, disks=(replace(guest.disks[0], **shown),)))


def _of_guest(name: str, change: Callable[[GuestShown], GuestShown]) -> Callable[[Cloud], Planted]:
    """The guest is shown otherwise."""

    def plant(cloud: Cloud) -> Planted:
        row = _sound(cloud)
        cloud.db.execute(
            "UPDATE mappings SET device_name = 'vdb' WHERE attachment_id = %s", [row.id]
        )
        guests = cloud.guests[HOST]
        guest = guests.pop()
        changed = change(guest)
        guests.append(changed)

        def end() -> None:
            guests[guests.index(changed)] = guest

        volume = changed.disks[-1].serial if changed.disks else row.volume_id
        return Planted(classes={name: HERE}, end=end, server=row.instance, volume=volume)

    return plant


def _without_disk(guest: GuestShown) -> GuestShown:
    return replace(guest, disks=())


def _with_another(guest: GuestShown) -> GuestShown:
    more = DiskShown(
        serial=str(uuid4()),
        live="vdd",
        persistent="vdd",
        readonly_live=False,
        readonly_persistent=False,
    )
    return replace(guest, disks=(*guest.disks, more))


def _without_definition(guest: GuestShown) -> GuestShown:
    live = replace(guest.disks[0], persistent=None, readonly_persistent=None)
    return replace(guest, defined=False, disks=(live,))


def disk_unlabelled(cloud: Cloud) -> Planted:
    row, volume = _sound(cloud), cloud.model.add_volume().id
    disk = UnlabelledShown(target="vdz", source=f"/mnt/volume-{volume}", volume_id=volume)
    guests = cloud.guests[HOST]
    guests.append(replace(guests.pop(), unlabelled=(disk,)))

    def end() -> None:
        shown = next(each for each in guests if each.server_id == row.instance)
        guests[guests.index(shown)] = replace(shown, unlabelled=())

    return Planted(classes={"disk_unlabelled": HERE}, end=end, server=row.instance, volume=volume)


# --- connections and storage ---------------------------------------------------------------------


def connection_missing(cloud: Cloud) -> Planted:
    row = _sound(cloud)
    record = cloud.connections[HOST].pop()
    return _planted(row, lambda: cloud.connections[HOST].append(record), "connection_missing")


def _record(name: str, *, present: bool) -> Callable[[Cloud], Planted]:
    def plant(cloud: Cloud) -> Planted:
        row = _sound(cloud)
        record = ConnectionShown(
            attachment_id=str(uuid4()),
            volume_id=cloud.model.add_volume().id,
            server_id=str(row.instance),
            serial=str(uuid4()),
            present=present,
        )
        cloud.connections[HOST].append(record)
        end = lambda: cloud.connections[HOST].remove(record)  # noqa: E731
        return Planted(classes={name: HERE}, server=row.instance, volume=record.volume_id, end=end)

    return plant


def _storage(name: str, kind: str, **shown: bool) -> Callable[[Cloud], Planted]:
    def plant(cloud: Cloud) -> Planted:
        told = {"recorded": False, "used": False, **shown}
        each = StorageShown(kind=kind, name=name, **told)
        cloud.storage.setdefault(HOST, []).append(each)
        return Planted(classes={name: HERE}, end=lambda: cloud.storage[HOST].remove(each))

    return plant


def secret_left(cloud: Cloud) -> Planted:
    volume = cloud.model.add_volume().id
    cloud.secrets.setdefault(HOST, []).append(volume)
    end = lambda: cloud.secrets[HOST].remove(volume)  # noqa: E731
    return Planted(classes={"secret_left": HERE}, volume=volume, end=end)


_RESERVED: Mapping[str, Any] = {
    "status": "reserved",
    "host": None,
    "mode": None,
    "connection_info": {},
}
_RESIZED, _DELETED = {"resize_source": OTHER}, {"deleted": True}
_R, _OFF, _PAUSED = "running", "shutdown", "paused"

PLANTS: tuple[Callable[[Cloud], Planted], ...] = (
    _another("reservation_unknown", _RESERVED),
    _another("attachment_unknown", {"status": "attaching"}),
    _another("owner_gone", {}, "deleted"),
    _another("owner_unknown", {}, "strange"),
    attachment_lost,
    attachment_unmapped,
    _in_cinder("attachment_status_differs", status="attaching"),
    _in_cinder("attachment_host_differs", host="elsewhere"),
    _in_cinder("attachment_mountpoint_differs", mountpoint="/dev/vdz"),
    _in_cinder("attachment_mode_differs", mode="ro"),
    connection_missing,
    legacy_mapping,
    volume_gone,
    _volume("volume_status_differs", status="available"),
    _volume("volume_stuck", status="extending"),
    _volume("volume_project_differs", project_id="another"),
    volume_of_nobody,
    shown_as({"guest_twice": BOTH}, here=_R, there=_R, ledger=_RESIZED),
    shown_as({"guest_twice": BOTH, "guest_elsewhere": THERE}, here=_R, there=_R),
    shown_as({"guest_elsewhere": THERE}, here=_R, there=_OFF),
    shown_as({"guest_missing": HERE}),
    shown_as({"guest_missing": HERE, "guest_elsewhere": THERE}, there=_R),
    shown_as({"guest_missing": THERE}, here=_R, ledger=_RESIZED),
    shown_as({"guest_of_deleted": THERE}, there=_OFF, ledger=_DELETED),
    shown_as({"guest_of_deleted": BOTH}, here=_OFF, there=_OFF, ledger=_DELETED),
    shown_as({"guest_of_deleted": BOTH, "guest_twice": BOTH}, here=_R, there=_R, ledger=_DELETED),
    shown_as({"power_differs": HERE}, here=_PAUSED),
    _of_guest("guest_undefined", _without_definition),
    _of_guest("disk_missing", _without_disk),
    _of_guest("disk_unknown", _with_another),
    _disk("disk_definition_differs", persistent=None, readonly_persistent=None),
    _disk("disk_device_differs", live="vdc", persistent="vdc"),
    _disk("disk_readonly_differs", readonly_live=True, readonly_persistent=True),
    _disk("disk_source_differs", recorded=False),
    _disk("disk_size_differs", size_bytes=2 * GIB, device_bytes=GIB),
    disk_unlabelled,
    _record("connection_left", present=True),
    _record("record_left", present=False),
    _storage("storage_left", "loop"),
    _storage("mount_unused", "mount"),
    secret_left,
    _storage("paths_faulty", "multipath_map", used=True, faulty=True),
)
