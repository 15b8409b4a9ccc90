"""Differences between a running Nova, its Cinder and, if they were asked, its hosts.

The rows and predicates are those of a look (`rows`, `predicates`), with Nova's data in the place of
the ledger's, so a difference has the same name in both.  Facts that Nova does not show (access
modes, names of disks, connection records) are left out.

Work in progress is not reported: a server with a task or a resize to be confirmed, with its
volumes; a volume that Cinder migrates; what could not be read; disks of a volume that Cinder or
Nova works on, and of a server in rescue, whose guest has others.  A status that normally passes is
reported only after it has lasted, since `attached_at` of the attachment or `updated_at` of the
volume; a volume's own also if its server has a task, which may hang for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from aggregates.attachment import AttachmentState
from aggregates.base import About
from aggregates.server import RUNNING
from handlers.drift import predicates
from handlers.drift.beside_words import (
    ATTACHED_TWICE,
    ENDED,
    KINDS,
    NOVA,
    VOLUME_FAILED,
    DifferenceClass,
)
from handlers.drift.classes import DriftClass
from handlers.drift.judge import Suspicion, drifting, sound
from handlers.drift.rows import (
    UNKNOWN,
    AttachmentRow,
    CinderAttachment,
    CinderVolume,
    DiskRow,
    LedgerAttachment,
    LedgerDisk,
    LedgerServer,
    Party,
    Row,
    ServerRow,
    StorageRow,
    Unknown,
    UnlabelledRow,
    VolumeRow,
)
from handlers.drift.seen import Cloud, SeenAttachment, SeenServer, SeenVolume
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import (
    GUESTS,
    SECRETS,
    STORAGE,
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
)
from host_agent.shared.contract.volume_states import NOT_MIGRATING

#: States in which Nova's server has a guest on its host.
_WITH_GUEST = frozenset({"active", "paused", "stopped", "suspended", "rescued"})
#: How Cinder's backends name the files, images and logical volumes of a volume.
_NAMED = re.compile(r"volume-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference: its class, its subject, what each party shows, and since when.

    `case`: the key of its repair in `DifferenceClass.cases`, such as a volume's status.
    `hosts`: whose surveys show it; `moment`: what an act on the server or the disk would change,
    such as a migration there and back, of which hosts and lists may each show another half.
    """

    kind: DifferenceClass
    key: str
    about: About
    says: Mapping[str, Any]
    case: str | None
    since: str | None = None
    hosts: frozenset[str] = frozenset()
    moment: tuple[str | None, ...] = ()

    @property
    def id(self) -> tuple[str, str]:
        return (self.kind.name, self.key)


def found(cloud: Cloud, stuck: timedelta) -> list[Difference]:
    """All differences, the worst first; `stuck`: how long a status must last to be one."""
    every = [*_pairs(cloud, stuck), *_again(cloud), *_volumes(cloud, stuck), *_hosts(cloud, stuck)]
    return sorted(every, key=lambda each: (each.kind.rank, each.id))


def confirmed(before: list[Difference], now: list[Difference]) -> list[Difference]:
    """Those of the second round that were in the first, with the same values."""
    then = {each.id: each for each in before}
    pairs = ((each, then[each.id]) for each in now if each.id in then)
    return [now for now, one in pairs if (one.says, one.moment) == (now.says, now.moment)]


def tells(cloud: Cloud, about: About) -> bool:
    """Whether this round could have seen a difference of this subject."""
    server = cloud.servers.get(about.server_id or "")
    volume = cloud.volumes.get(about.volume_id or "")
    if isinstance(server, Unknown) or isinstance(volume, Unknown):
        return False
    if volume is not None and volume.migration_status not in NOT_MIGRATING:
        return False
    if server is None and about.server_id in (cloud.owners | cloud.guests) - cloud.servers.keys():
        return False  # a limit of the round was reached
    if volume is None and about.volume_id in cloud.mapped.keys() - cloud.volumes.keys():
        return False
    return server is None or not server.busy


def questionable(cloud: Cloud) -> list[str]:
    """The servers whose attachment ids in Nova must be read to compare them."""
    asked = {
        server.id
        for servers in cloud.mapped.values()
        for server in servers
        if not server.busy
        and any(len(cloud.by_pair.get((server.id, each), ())) != 1 for each in server.volumes)
    }
    for server_id, volume_id in cloud.by_pair:
        server = cloud.server(server_id)
        if isinstance(server, SeenServer) and not server.busy and volume_id not in server.volumes:
            asked.add(server.id)
    return sorted(asked)


# --- mappings and attachments -------------------------------------------------------------------


def _pairs(cloud: Cloud, stuck: timedelta) -> Iterator[Difference]:
    for seen in cloud.attachments.values():
        row, volume = _attachment(cloud, seen), cloud.volumes.get(seen.volume_id)
        if isinstance(volume, SeenVolume) and volume.migration_status not in NOT_MIGRATING:
            continue  # during a migration Cinder has an attachment that Nova does not have
        since = seen.since or (volume.updated_at if isinstance(volume, SeenVolume) else None)
        for each in _of(row, seen.status) if row else ():
            if not each.kind.lasts or _lasted(since, cloud, stuck):
                yield replace(each, since=since)
    for server in cloud.servers.values():
        if isinstance(server, SeenServer) and not server.busy:
            for volume_id in server.volumes:
                yield from _unattached(cloud, server, volume_id)


def _again(cloud: Cloud) -> Iterator[Difference]:
    """Attachments that are there, although they have ended in the log."""
    for seen in (each for id_, each in cloud.attachments.items() if id_ in cloud.ended):
        server = cloud.server(seen.server_id)
        if isinstance(server, SeenServer) and not server.busy:
            says = {
                NOVA: {"host": server.host},
                Party.LEDGER.value: {"state": AttachmentState.DELETED.value},
                Party.CINDER.value: {"status": seen.status, "host": seen.host},
            }
            yield Difference(
                kind=KINDS["attachment_ended"],
                key=seen.id,
                about=_about(seen.server_id, seen.volume_id, seen.id, seen.host),
                says=says,
                case=None,
                since=seen.since,
            )


def _attachment(cloud: Cloud, seen: SeenAttachment) -> AttachmentRow | None:
    """None: it cannot be compared now."""
    server = cloud.server(seen.server_id)
    if isinstance(server, Unknown) or (server is not None and server.busy):
        return None
    named: str | Unknown | None = None
    if server is not None and seen.volume_id in server.volumes:
        named = _named(cloud, server, seen.volume_id)
    if isinstance(named, Unknown):
        return None
    ours = server is not None and named == seen.id
    return AttachmentRow(
        id=seen.id,
        about=_about(seen.server_id, seen.volume_id, seen.id, seen.host),
        server="deleted" if server is None else "live",
        ledger=_nova(server) if server is not None and ours else None,
        cinder=CinderAttachment(status=seen.status, host=seen.host),
    )


def _named(cloud: Cloud, server: SeenServer, volume_id: str) -> str | Unknown | None:
    """The attachment id in Nova's mapping; None: there is none.  Mappings from before Queens, and
    lists of servers, have no id; then the only attachment of the pair in Cinder is taken.
    """
    named = (server.attachments or {}).get(volume_id)
    of_pair = cloud.by_pair.get((server.id, volume_id))
    if named is not None or not of_pair:
        return named
    return of_pair[0].id if len(of_pair) == 1 else UNKNOWN


def _unattached(cloud: Cloud, server: SeenServer, volume_id: str) -> Iterator[Difference]:
    """A mapping without an attachment in Cinder."""
    if isinstance(cloud.volumes.get(volume_id, UNKNOWN), (Unknown, type(None))):
        return  # a missing volume is another class
    named = _named(cloud, server, volume_id)
    if server.attachments is not None and volume_id not in server.attachments:
        return  # it was detached since
    if named in cloud.attachments or (
        named is UNKNOWN and cloud.by_pair.get((server.id, volume_id))
    ):
        return
    attachment_id = named if isinstance(named, str) else None
    yield from _of(
        AttachmentRow(
            id=attachment_id or f"{server.id}/{volume_id}",
            about=_about(server.id, volume_id, attachment_id, server.host),
            server="live",
            ledger=_nova(server),
            cinder=None,
        )
    )


def _nova(server: SeenServer) -> LedgerAttachment:
    """Nova's mapping: attached on the server's host; reserved, if it has none."""
    state = AttachmentState.ATTACHED if server.host else AttachmentState.RESERVED
    return LedgerAttachment(
        state=state, host=server.host, access_mode=None, legacy=False, mapped=True
    )


# --- volumes ------------------------------------------------------------------------------------


def _volumes(cloud: Cloud, stuck: timedelta) -> Iterator[Difference]:
    for volume_id, volume in cloud.volumes.items():
        if isinstance(volume, SeenVolume) and volume.migration_status not in NOT_MIGRATING:
            continue
        servers = cloud.mapped.get(volume_id, [])
        attachments = cloud.by_volume.get(volume_id, [])
        theirs = [cloud.server(each.server_id) for each in attachments if each.server_id]
        busy = any(
            isinstance(each, Unknown) or (each and each.busy) for each in (*theirs, *servers)
        )
        if busy and (not isinstance(volume, SeenVolume) or volume.status in ENDED):
            continue  # a passing status that lasts is Cinder's alone; all else may be the task's
        row = VolumeRow(
            id=volume_id,
            about=_about(servers[0].id if servers else None, volume_id),
            mappings=len(servers),
            had=True,
            cinder=_cinder(volume, len(attachments)),
        )
        case = "" if volume is None else _case(volume, attached=bool(attachments))
        for each in _of(row, case):
            if not isinstance(volume, SeenVolume) or _lasts(volume, cloud, stuck):
                since = volume.updated_at if isinstance(volume, SeenVolume) else None
                yield replace(each, since=since)
        if isinstance(volume, SeenVolume) and not busy:
            yield from _more(volume, row, attachments)


def _more(
    volume: SeenVolume, row: VolumeRow, attachments: list[SeenAttachment]
) -> Iterator[Difference]:
    """Classes that no look has: a ledger attaches no volume twice, and knows only volumes of its
    own servers.
    """
    says = {Party.CINDER.value: {"status": volume.status, "attachments": len(attachments)}}
    if volume.status.startswith("error") and not predicates.volume_status(row):
        case = _case(volume, attached=bool(attachments))
        yield _made(VOLUME_FAILED, row, says, case, volume.updated_at)
    servers = sorted({each.server_id for each in attachments if each.server_id})
    if len(servers) > 1 and not volume.multiattach:
        says = {Party.CINDER.value: {"multiattach": False, "servers": servers}}
        yield _made(ATTACHED_TWICE, row, says, None, None)


def _cinder(volume: SeenVolume | Unknown | None, attachments: int) -> CinderVolume | Unknown | None:
    if not isinstance(volume, SeenVolume):
        return volume
    return CinderVolume(
        status=volume.status, attachments=attachments, migration_status=volume.migration_status
    )


def _case(volume: SeenVolume | Unknown, *, attached: bool) -> str | None:
    if isinstance(volume, Unknown):
        return None
    return f"{volume.status}, attached" if attached else volume.status


def _lasts(volume: SeenVolume, cloud: Cloud, stuck: timedelta) -> bool:
    """Whether its status is a final one, or has lasted."""
    return volume.status in ENDED or _lasted(volume.updated_at, cloud, stuck)


def _lasted(since: str | None, cloud: Cloud, stuck: timedelta) -> bool:
    """Whether `since` is at least `stuck` ago; False without a time."""
    if not since:
        return False
    then = datetime.fromisoformat(since)
    return cloud.now - (then if then.tzinfo else then.replace(tzinfo=UTC)) >= stuck


# --- hosts --------------------------------------------------------------------------------------


def _hosts(cloud: Cloud, stuck: timedelta) -> Iterator[Difference]:
    powers = {
        server_id: {host: guest.power_state.value for host, guest in guests}
        for server_id, guests in cloud.shown.items()
    }
    on_hosts = {
        each.id
        for each in cloud.servers.values()
        if isinstance(each, SeenServer) and each.host in cloud.hosts
    }
    for server_id in sorted(powers.keys() | on_hosts):
        server = cloud.server(server_id)
        if isinstance(server, Unknown) or (server is not None and server.busy):
            continue
        for each in _of(_guest(cloud, server_id, server, powers.get(server_id, {}))):
            yield replace(each, moment=_moment(cloud, each.about))
    for host, survey in cloud.hosts.items():
        for guest in survey.guests:
            for row in _disks(cloud, host, guest, stuck):
                for each in _of(row):
                    yield replace(each, moment=_moment(cloud, each.about))
        yield from _storage(cloud, host, survey)


def _moment(cloud: Cloud, about: About) -> tuple[str | None, ...]:
    server = cloud.server(about.server_id)
    of_pair = cloud.by_pair.get((about.server_id, about.volume_id or ""), ())
    updated = server.updated if isinstance(server, SeenServer) else None
    return (updated, *sorted(each.id for each in of_pair))


def _guest(
    cloud: Cloud, server_id: str, server: SeenServer | None, powers: Mapping[str, str]
) -> ServerRow:
    host = server.host if server else None
    return ServerRow(
        id=server_id,
        about=_about(server_id, None, None, host or next(iter(sorted(powers)), None)),
        ledger=LedgerServer(
            hosts=(host,) if host else (),
            power_state=powers.get(host or "", PowerState.NOSTATE),
            built=server is not None and server.vm_state in _WITH_GUEST,
            deleted=server is None,
        ),
        shown=tuple(sorted(powers.items())),
        unknown_hosts=(host,) if host and not cloud.sees(host, GUESTS) else (),
    )


def _disks(
    cloud: Cloud, host: str, guest: GuestShown, stuck: timedelta
) -> Iterator[DiskRow | UnlabelledRow]:
    server = cloud.server(guest.server_id)
    if not isinstance(server, SeenServer) or server.busy or server.host != host:
        return
    shown = {disk.serial: disk for disk in guest.disks}
    for volume_id in sorted(shown.keys() | set(server.volumes)):
        volume, disk = cloud.volumes.get(volume_id), shown.get(volume_id)
        seen = volume if isinstance(volume, SeenVolume) else None
        about = _about(server.id, volume_id, None, host)
        if _at_rest(cloud, about, stuck):
            yield DiskRow(
                id=f"{server.id}/{volume_id}",
                about=about,
                ledger=_mapped_disk(cloud, server, volume_id),
                shown=_by_name(disk, seen) if disk else None,
                running=guest.power_state in RUNNING,
                defined=guest.defined,
                cinder=seen.size_gb if seen and seen.size_gb is not None else UNKNOWN,
            )
    for other in guest.unlabelled or ():
        key = f"{server.id}/{other.target}"
        about = _about(server.id, other.volume_id, None, host)
        if _at_rest(cloud, about, stuck):
            yield UnlabelledRow(id=key, about=about, shown=other)


def tells_disk(cloud: Cloud, drift_class: DriftClass, about: About, stuck: timedelta) -> bool:
    """Whether this round could have seen a difference of a disk of this class: each guest of the
    server tells enough of it.
    """
    of_disk = drift_class.row is DiskRow
    for host, guest in cloud.shown.get(about.server_id or "", ()):
        rows = _disks(cloud, host, guest, stuck) if of_disk else ()
        its = [row for row in rows if row.about.volume_id == about.volume_id]
        if any(isinstance(row, DiskRow) and drift_class not in sound(row) for row in its):
            return False
        if not of_disk and guest.unlabelled is None:
            return False
    return _at_rest(cloud, about, stuck)


def _at_rest(cloud: Cloud, about: About, stuck: timedelta) -> bool:
    """Whether disks can be compared: not in rescue, nor while the volume is worked on, for attach
    and detach are no task of a server in Nova.
    """
    server, volume = cloud.server(about.server_id), cloud.volumes.get(about.volume_id or "")
    if isinstance(server, SeenServer) and server.vm_state == "rescued":
        return False
    if not isinstance(volume, SeenVolume):
        return True
    return volume.migration_status in NOT_MIGRATING and _lasts(volume, cloud, stuck)


def _mapped_disk(cloud: Cloud, server: SeenServer, volume_id: str) -> LedgerDisk | None:
    """`plugged` if the attachment is `attached` in Cinder, so the guest must have the disk."""
    if volume_id not in server.volumes:
        return None
    of_pair = cloud.by_pair.get((server.id, volume_id), ())
    plugged = any(each.status == "attached" for each in of_pair)
    return LedgerDisk(volume_id=volume_id, device_name=None, access_mode=None, plugged=plugged)


def _by_name(disk: DiskShown, volume: SeenVolume | None) -> DiskShown:
    """`recorded` by the volume id in the name of the disk's source, because Nova has no connection
    records.
    """
    named = _NAMED.search(disk.source or "")
    of_it = {disk.serial, volume.name_id if volume else None}
    return replace(disk, recorded=named[1] in of_it if named and volume else None)


def _storage(cloud: Cloud, host: str, survey: Survey) -> Iterator[Difference]:
    things = () if STORAGE in survey.blind else survey.storage
    secrets = () if SECRETS in survey.blind else survey.secrets
    every = [*things, *(_secret(volume_id) for volume_id in secrets)]
    for thing in every:
        servers = cloud.mapped.get(thing.name, []) if thing.kind == "secret" else []
        if any(server.busy for server in servers):
            continue
        row = StorageRow(
            id=f"{thing.kind} {thing.name}",
            about=_about(None, None, None, host),
            shown=thing,
            wanted=any(server.host == host for server in servers),
        )
        yield from _of(row)


def _secret(volume_id: str) -> StorageShown:
    return StorageShown(kind="secret", name=volume_id, recorded=False, used=False)


# --- a row's findings ---------------------------------------------------------------------------


def _of(row: Row, case: str | None = None) -> Iterator[Difference]:
    for each in drifting(row):
        if (kind := KINDS.get(each.name)) is None:
            continue
        parties = tuple(dict.fromkeys((Party.LEDGER, *each.parties)))  # what Nova has, always
        seen = Suspicion.of(replace(each, parties=parties), row)
        says = {
            NOVA if party == Party.LEDGER else party: told for party, told in seen.differs.items()
        }
        yield replace(_made(kind, row, says, case, None), hosts=seen.hosts)


def _made(
    kind: DifferenceClass, row: Row, says: Mapping[str, Any], case: str | None, since: str | None
) -> Difference:
    key = row.id if not isinstance(row, StorageRow) else f"{row.about.host} {row.id}"
    return Difference(kind=kind, key=key, about=row.about, says=says, case=case, since=since)


def _about(
    server: str | None, volume: str | None, attachment: str | None = None, host: str | None = None
) -> About:
    return About(server_id=server, volume_id=volume, attachment_id=attachment, host=host)
