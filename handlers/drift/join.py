"""Joins the projections, Cinder's lists and the hosts' surveys to rows.

Two passes cover everything.  The first goes by ids of attachments and volumes over the ledger and
Cinder; the second goes host by host over the ledger and the host's survey.  A value that one pass
cannot know is unknown in its rows; the other pass has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from aggregates.base import About
from aggregates.mapping import MappingState
from aggregates.server import RUNNING
from handlers.drift.rows import (
    UNKNOWN,
    AttachmentRow,
    CinderAttachment,
    CinderVolume,
    ConnectionRow,
    DiskRow,
    LedgerAttachment,
    LedgerDisk,
    LedgerServer,
    Row,
    ServerRow,
    StorageRow,
    StrangersAttachment,
    Unknown,
    UnlabelledRow,
    VolumeRow,
)
from host_agent.shared.contract.survey import (
    CONNECTIONS,
    GUESTS,
    SECRETS,
    STORAGE,
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
)

#: A row of a projection by its columns, or an aggregate's facts, which have the same names.
Stored = Mapping[str, Any]

#: Cached sets of facts: most attachments of a cloud differ in nothing but their ids.
FACTS_MAX = 16_384


# --- the pass over ids --------------------------------------------------------------------------


@dataclass(kw_only=True)
class CinderListing:
    """An attachment as Cinder lists it."""

    id: str
    volume_id: str
    server_id: str | None
    shown: CinderAttachment


def attachment(
    stored: Stored | None,
    listed: CinderListing | Unknown | None,
    *,
    server: str | None,
    mapped: bool,
    device: str | None = None,
    connected: bool | Unknown = UNKNOWN,
    taken_by: str | None = None,
) -> AttachmentRow:
    """One attachment: `stored` (open in the ledger), `listed` by Cinder, or both.

    `server`: "live", "deleted", or None: unknown to the ledger.  `device`: the disk's name in the
    mapping.  `taken_by`: of an attachment of an unknown server, the ledger's server that has the
    volume exclusively; the row is then about that server.
    """
    if stored is None:
        assert isinstance(listed, CinderListing)
        id_, of, host = listed.id, (taken_by or listed.server_id, listed.volume_id), None
        if taken_by is not None:
            theirs = StrangersAttachment(**vars(listed.shown), server_id=listed.server_id)
            listed = replace(listed, shown=theirs)
    else:
        id_, host = str(stored["attachment_id"]), stored["host"]
        of = (str(stored["server_id"]), str(stored["volume_id"]))
    legacy = stored is not None and stored["legacy"]  # its id is our own, not Cinder's
    return AttachmentRow(
        id=id_,
        about=About(server_id=of[0], volume_id=of[1], attachment_id=id_, host=host),
        server=server,
        ledger=None if stored is None else ledger_attachment(stored, mapped, device),
        cinder=UNKNOWN if legacy else listed.shown if isinstance(listed, CinderListing) else listed,
        connected=connected,
        taken=taken_by is not None,
    )


def ledger_attachment(stored: Stored, mapped: bool, device: str | None) -> LedgerAttachment:
    mode, legacy = stored["access_mode"], stored["legacy"]
    return _held(stored["state"], stored["host"], mode, legacy, mapped, device)


@lru_cache(maxsize=FACTS_MAX)
def _held(
    state: str,
    host: str | None,
    mode: str | None,
    legacy: bool,
    mapped: bool,
    device: str | None,
) -> LedgerAttachment:
    return LedgerAttachment(
        state=state, host=host, access_mode=mode, legacy=legacy, mapped=mapped, device=device
    )


@lru_cache(maxsize=FACTS_MAX)
def shown_as(
    status: str, host: str | None, mode: str | None, mountpoint: str | None
) -> CinderAttachment:
    """An attachment in Cinder, from the cache."""
    return CinderAttachment(status=status, host=host, mode=mode, mountpoint=mountpoint)


@lru_cache(maxsize=FACTS_MAX)
def volume_as(
    status: str,
    attachments: int,
    migration_status: str | None,
    made: bool,
    project_id: str | None,
    since: str | None,
) -> CinderVolume:
    """A volume in Cinder, from the cache."""
    return CinderVolume(
        status=status,
        attachments=attachments,
        migration_status=migration_status,
        made=made,
        project_id=project_id,
        since=since,
    )


def volume(
    volume_id: str,
    shown: CinderVolume | Unknown | None,
    *,
    mappings: int,
    had: bool,
    server_id: str | None = None,
    projects: Iterable[str] = (),
    made_by: str | None = None,
) -> VolumeRow:
    """One volume.  `mappings`: its live ones; `projects`: of their servers; `made_by`: see
    LedgerVolume.
    """
    return VolumeRow(
        id=volume_id,
        about=About(volume_id=volume_id, server_id=server_id),
        mappings=mappings,
        had=had,
        cinder=shown,
        projects=tuple(sorted(projects)),
        made_by=made_by,
    )


# --- the pass over hosts ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """What the ledger has on one host, and the host's survey (None: unknown).

    `servers`: those whose guest belongs here, including the source of a resize; `mappings`: their
    live ones with a volume; `attachments`: this host's open ones, and those in the survey's
    records.
    """

    host: str
    survey: Survey | None
    servers: Sequence[Stored] = ()
    mappings: Sequence[Stored] = ()
    attachments: Sequence[Stored] = ()
    #: By server, also deleted ones: the other hosts that show its guest, and the power state there.
    shown_elsewhere: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    #: Of servers with two hosts, by the other host and the server: the power state there; None: no
    #: guest; missing: that host is unknown.
    other_hosts: Mapping[tuple[str, str], str | None] = field(default_factory=dict)
    #: Sizes of volumes in Cinder, in GiB, as far as they were read.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def sees(self, part: str) -> bool:
        """Whether the survey has this part (`PARTS`)."""
        return self.survey is not None and part not in self.survey.blind

    @cached_property
    def guests(self) -> dict[str, GuestShown]:
        """By server."""
        return {guest.server_id: guest for guest in self.survey.guests} if self.survey else {}


def of_host(here: Hosted) -> Iterator[Row]:
    """All rows of a host."""
    for stored in here.servers:
        if stored["host"] == here.host:
            yield server(here, stored)
    yield from _attachments(here)
    if here.survey is not None:
        yield from _disks(here)
        yield from _connections(here, here.survey)
        yield from _storage(here, here.survey)


def server(here: Hosted, stored: Stored) -> ServerRow:
    """One server, on all hosts where it belongs or is shown.

    Called for the server's host; without one (deleted, offloaded) for any host that shows it.
    """
    id_ = str(stored["server_id"])
    ledger = ledger_server(stored)
    powers: dict[str, str | Unknown | None] = {
        host: _power_here(here, id_)
        if host == here.host
        else here.other_hosts.get((host, id_), UNKNOWN)
        for host in ledger.hosts
    }
    unknown = [host for host, power in powers.items() if power is UNKNOWN]
    shown = dict(here.shown_elsewhere.get(id_, ()))
    shown |= {host: power for host, power in powers.items() if isinstance(power, str)}
    return ServerRow(
        id=id_,
        about=About(server_id=id_, host=stored["host"]),
        ledger=ledger,
        shown=tuple(sorted(shown.items())),
        unknown_hosts=tuple(unknown),
        undefined=_undefined(here, stored),
    )


def ledger_server(stored: Stored) -> LedgerServer:
    """A row of the projection `instances`, or an Instance with its `server_id`."""
    hosts = (stored["host"], stored["resize_source"])
    return LedgerServer(
        hosts=() if stored["deleted"] else tuple(host for host in hosts if host is not None),
        power_state=stored["power_state"],
        built=str(stored["server_id"]) not in stored["faults"],
        deleted=stored["deleted"],
    )


def _undefined(here: Hosted, stored: Stored) -> tuple[str, ...]:
    """Only the server's own host counts: a guest on another one is `guest_elsewhere`."""
    guest = here.guests.get(str(stored["server_id"])) if here.sees(GUESTS) else None
    lacks = guest is not None and not guest.defined and stored["host"] == here.host
    return (here.host,) if lacks else ()


def _power_here(here: Hosted, server_id: str) -> str | Unknown | None:
    if not here.sees(GUESTS):
        return UNKNOWN
    guest = here.guests.get(server_id)
    return None if guest is None else guest.power_state.value


def _attachments(here: Hosted) -> Iterator[Row]:
    """This host's attachments, and whether it has them connected; Cinder is for the other pass."""
    records = {each.attachment_id for each in here.survey.connections} if here.survey else set()
    named = {
        str(id_): mapping["device_name"]
        for mapping in here.mappings
        for id_ in (mapping["attachment_id"], mapping["kept"])
        if id_
    }
    for stored in here.attachments:
        id_ = str(stored["attachment_id"])
        if stored["host"] == here.host and stored["state"] != "deleted":
            yield attachment(
                stored,
                UNKNOWN,
                server=None,  # for the other pass
                mapped=id_ in named,
                device=named.get(id_),
                connected=id_ in records if here.sees(CONNECTIONS) else UNKNOWN,
            )


def _disks(here: Hosted) -> Iterator[Row]:
    """The disks of the servers here; of a missing guest there is nothing to compare."""
    if not here.sees(GUESTS):
        return
    by_server: dict[str, dict[str, Stored]] = defaultdict(dict)
    for mapping in here.mappings:
        by_server[str(mapping["server_id"])][str(mapping["serial"])] = mapping
    own = {str(stored["server_id"]) for stored in here.servers if stored["host"] == here.host}
    for server_id, guest in here.guests.items():
        if server_id in own:
            mapped = by_server[server_id]
            shown = {disk.serial: disk for disk in guest.disks}
            for serial in sorted(mapped.keys() | shown.keys()):
                yield _disk(here, guest, serial, mapped.get(serial), shown.get(serial))
            for disk in guest.unlabelled or ():
                about = About(server_id=server_id, volume_id=disk.volume_id, host=here.host)
                yield UnlabelledRow(id=f"{server_id}/{disk.target}", about=about, shown=disk)


def _disk(
    here: Hosted, guest: GuestShown, serial: str, stored: Stored | None, shown: DiskShown | None
) -> DiskRow:
    volume_id = serial if stored is None else str(stored["volume_id"])
    attachment_id = str(stored["attachment_id"]) if stored and stored["attachment_id"] else None
    return DiskRow(
        id=f"{guest.server_id}/{serial}",
        about=About(
            server_id=guest.server_id,
            volume_id=volume_id,
            attachment_id=attachment_id,
            host=here.host,
        ),
        ledger=None if stored is None else ledger_disk(stored),
        shown=shown,
        cinder=here.sizes.get(volume_id, UNKNOWN),
        running=guest.power_state in RUNNING,
        defined=guest.defined,
    )


def ledger_disk(stored: Stored) -> LedgerDisk:
    return LedgerDisk(
        volume_id=str(stored["volume_id"]),
        device_name=stored["device_name"],
        access_mode=stored["access_mode"],
        plugged=stored["state"] == MappingState.PLUGGED,
    )


def _connections(here: Hosted, survey: Survey) -> Iterator[Row]:
    if not here.sees(CONNECTIONS):
        return
    stored = {str(each["attachment_id"]): each for each in here.attachments}
    for shown in survey.connections:
        known = stored.get(shown.attachment_id)
        open_ = known is not None and known["state"] != "deleted"
        yield ConnectionRow(
            id=shown.attachment_id,
            about=About(
                server_id=shown.server_id,
                volume_id=shown.volume_id,
                attachment_id=shown.attachment_id,
                host=here.host,
            ),
            ledger=ledger_attachment(known, True, None) if known is not None and open_ else None,
            shown=shown,
        )


def _storage(here: Hosted, survey: Survey) -> Iterator[Row]:
    if here.sees(STORAGE):
        for shown in survey.storage:
            yield _storage_row(here.host, shown, wanted=False)
    if here.sees(SECRETS):
        wanted = set(_volumes(here.mappings)) | {each.volume_id for each in survey.connections}
        wanted |= {disk.serial for guest in survey.guests for disk in guest.disks}
        for volume_id in survey.secrets:
            shown = StorageShown(kind="secret", name=volume_id, recorded=False, used=False)
            wanted_here = volume_id in wanted
            yield _storage_row(here.host, shown, wanted=wanted_here, volume_id=volume_id)


def _volumes(mappings: Iterable[Stored]) -> Iterator[str]:
    for mapping in mappings:
        yield from (str(mapping[name]) for name in ("volume_id", "serial") if mapping[name])


def _storage_row(
    host: str, shown: StorageShown, *, wanted: bool, volume_id: str | None = None
) -> StorageRow:
    id_, about = f"{shown.kind}/{shown.name}", About(host=host, volume_id=volume_id)
    return StorageRow(id=id_, about=about, shown=shown, wanted=wanted)
