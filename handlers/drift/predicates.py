"""The predicates of the classes: each takes one row whose compared parties are all known.

None: a party has not reported a fact that the predicate needs (a busy guest, a path that cannot be
compared).  The row is then neither a case of the class, nor known to be none.
"""

from __future__ import annotations

from typing import Any

from aggregates.attachment import AttachmentState
from aggregates.server import RUNNING
from handlers.drift.rows import (
    AttachmentRow,
    CinderAttachment,
    CinderVolume,
    ConnectionRow,
    DiskRow,
    ServerRow,
    StorageRow,
    VolumeRow,
)
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import ConnectionShown, DiskShown
from host_agent.shared.contract.volume_states import FAILED, NOT_MIGRATING

_A = AttachmentState
_ON_A_HOST = frozenset({_A.CONNECTED, _A.ATTACHED})
_LIVE, _DELETED = "live", "deleted"

#: By an attachment's state in the ledger: the statuses that it may have in Cinder.
STATUSES: dict[str, frozenset[str]] = {
    _A.RESERVED: frozenset({"reserved"}),
    _A.CONNECTING: frozenset({"reserved", "attaching"}),
    _A.CONNECTED: frozenset({"attaching"}),
    _A.ATTACHED: frozenset({"attached"}),
    _A.DISCONNECTED: frozenset({"reserved", "attaching", "attached", "error_attaching"}),
}
#: Statuses of a volume that only an operation in progress explains.
_PASSING = frozenset({"attaching", "detaching", "error_attaching", "error_detaching"})
_HELD = frozenset({"reserved", "in-use"})
#: Statuses in which Cinder neither attaches nor detaches a volume: none fits an attached one.
_OF_NO_USER = frozenset(
    {*FAILED, "available", "creating", "deleting", "managing", "maintenance", "awaiting-transfer"}
)
#: Statuses of Cinder's tasks that stay while cinder-volume is down, or if it never got the request;
#: `extending` and `retyping` also after its restart.  Not uploading, backing-up, restoring-backup:
#: they may take hours, and cinder-volume or cinder-backup ends them at its next start.
LASTING = frozenset({"creating", "deleting", "downloading", "extending", "retyping"})


# --- attachments ----------------------------------------------------------------------------


def _shown(row: AttachmentRow) -> CinderAttachment | None:
    return row.cinder if isinstance(row.cinder, CinderAttachment) else None


def reservation_unknown(row: AttachmentRow) -> bool:
    if row.ledger is not None or row.server != _LIVE:
        return False
    shown = _shown(row)
    return shown is not None and shown.status == "reserved" and shown.host is None


def attachment_unknown(row: AttachmentRow) -> bool:
    if row.ledger is not None or row.server != _LIVE:
        return False
    shown = _shown(row)
    return shown is not None and (shown.status != "reserved" or shown.host is not None)


def owner_unknown(row: AttachmentRow) -> bool:
    return row.ledger is None and row.server is None and row.taken and _shown(row) is not None


def owner_gone(row: AttachmentRow) -> bool:
    return row.ledger is None and row.server == _DELETED and _shown(row) is not None


def attachment_lost(row: AttachmentRow) -> bool:
    return row.ledger is not None and not row.ledger.legacy and row.cinder is None


def attachment_unmapped(row: AttachmentRow) -> bool:
    return row.ledger is not None and not row.ledger.mapped


def attachment_status(row: AttachmentRow) -> bool:
    shown = _shown(row)
    if row.ledger is None or row.ledger.legacy or shown is None:
        return False
    return shown.status not in STATUSES[row.ledger.state]


def attachment_host(row: AttachmentRow) -> bool:
    shown = _shown(row)
    if row.ledger is None or shown is None or row.ledger.state != _A.ATTACHED:
        return False
    return shown.host is not None and shown.host != row.ledger.host


def attachment_mode(row: AttachmentRow) -> bool | None:
    shown = _shown(row)
    if row.ledger is None or shown is None or row.ledger.state != _A.ATTACHED:
        return False
    if None in (shown.mode, row.ledger.access_mode):
        return None
    return shown.mode != row.ledger.access_mode


def attachment_mountpoint(row: AttachmentRow) -> bool:
    """Both must name one: a disk without a requested name gets it after Cinder was told."""
    shown = _shown(row)
    if row.ledger is None or shown is None or row.ledger.state != _A.ATTACHED:
        return False
    return None not in (shown.mountpoint, row.ledger.device) and (
        shown.mountpoint != row.ledger.device
    )


def connection_missing(row: AttachmentRow) -> bool:
    return row.ledger is not None and row.ledger.state in _ON_A_HOST and row.connected is False


def legacy_mapping(row: AttachmentRow) -> bool:
    return row.ledger is not None and row.ledger.legacy


# --- volumes --------------------------------------------------------------------------------


def volume_gone(row: VolumeRow) -> bool:
    return row.mappings > 0 and row.cinder is None


def volume_status(row: VolumeRow) -> bool:
    shown = _settled(row)
    if shown is None:
        return False
    if shown.attachments:
        return shown.status in _PASSING or shown.status in _OF_NO_USER
    return shown.status in _PASSING or shown.status in _HELD or shown.status == "error_deleting"


def volume_stuck(row: VolumeRow) -> bool:
    """Confirmed only by a much later look (`DriftClass.lasts_s`)."""
    shown = _settled(row)
    return shown is not None and shown.status in LASTING and not volume_status(row)


def _settled(row: VolumeRow) -> CinderVolume | None:
    """A volume that a server has or had, and that Cinder does not migrate."""
    shown = row.cinder
    if not isinstance(shown, CinderVolume) or not (row.had or row.mappings):
        return None
    return shown if shown.migration_status in NOT_MIGRATING else None


def volume_project(row: VolumeRow) -> bool | None:
    shown = row.cinder
    if not isinstance(shown, CinderVolume) or not row.mappings:
        return False
    if shown.project_id is None or not row.projects:
        return None
    return shown.project_id not in row.projects


def volume_of_nobody(row: VolumeRow) -> bool:
    shown = row.cinder
    ours = isinstance(shown, CinderVolume) and shown.made and shown.status != "deleting"
    return ours and not row.had and not row.mappings


# --- servers ----------------------------------------------------------------------------------

# Several hosts report on a server, and not every look reaches all of them.  So these predicates
# return the hosts whose reports show the drift; an empty set: no drift.


def hosts_without_guest(row: ServerRow) -> frozenset[str]:
    if row.ledger is None or row.ledger.deleted or not row.ledger.built:
        return frozenset()
    return frozenset(row.ledger.hosts) - set(row.showing) - set(row.unknown_hosts)


def hosts_elsewhere(row: ServerRow) -> frozenset[str]:
    if row.ledger is None or row.ledger.deleted:
        return frozenset()
    return frozenset(row.showing) - set(row.ledger.hosts)


def hosts_of_twins(row: ServerRow) -> frozenset[str]:
    running = frozenset(host for host, power in row.shown if power in RUNNING)
    return running if len(running) > 1 else frozenset()


def hosts_of_deleted(row: ServerRow) -> frozenset[str]:
    deleted = row.ledger is not None and row.ledger.deleted
    return frozenset(row.showing) if deleted else frozenset()


def hosts_without_definition(row: ServerRow) -> frozenset[str]:
    live = row.ledger is not None and not row.ledger.deleted
    return frozenset(row.undefined) if live else frozenset()


def hosts_of_other_power(row: ServerRow) -> frozenset[str]:
    if row.ledger is None or row.ledger.deleted or len(row.ledger.hosts) != 1:
        return frozenset()
    [host] = row.ledger.hosts
    shown = dict(row.shown).get(host)
    return frozenset({host}) if shown not in {None, row.ledger.power_state} else frozenset()


# --- disks --------------------------------------------------------------------------------------


def _disk(row: DiskRow) -> DiskShown | None:
    return row.shown if isinstance(row.shown, DiskShown) else None


def disk_missing(row: DiskRow) -> bool:
    shown = _disk(row)
    if row.ledger is None or not row.ledger.plugged:
        return False
    return shown is None or (row.running and shown.live is None)


def disk_unknown(row: DiskRow) -> bool:
    return row.ledger is None and _disk(row) is not None


def disk_undefined(row: DiskRow) -> bool:
    shown = _disk(row)
    if row.ledger is None or shown is None or (row.running and shown.live is None):
        return False
    return row.defined and (shown.persistent is None or bool(shown.differs))


def disk_device(row: DiskRow) -> bool:
    shown = _disk(row)
    if row.ledger is None or shown is None or row.ledger.device_name is None:
        return False
    return bool({shown.live, shown.persistent} - {None, row.ledger.device_name})


def disk_readonly(row: DiskRow) -> bool:
    shown = _disk(row)
    if row.ledger is None or shown is None or row.ledger.access_mode is None:
        return False
    wrong = row.ledger.access_mode != "ro"
    return wrong in (shown.readonly_live, shown.readonly_persistent)


def disk_source(row: DiskRow) -> bool | None:
    shown = _disk(row)
    if shown is None:  # the guest has no such disk any more
        return False
    return None if shown.recorded is None else not shown.recorded


def disk_size(row: DiskRow) -> bool | None:
    """Only a disk that is too small: backends round up.  Compared in whole GiB, because the guest
    does not see the header of an encrypted volume.
    """
    shown = _disk(row)
    if shown is None or row.ledger is None:
        return False
    if shown.size_bytes is None:
        return None
    beyond = shown.device_bytes is not None and shown.size_bytes > shown.device_bytes
    if not isinstance(row.cinder, int):
        return None
    return beyond or -(-shown.size_bytes // GIB) < row.cinder


# --- what a host has connected ----------------------------------------------------------------


def _nobodys(row: ConnectionRow) -> ConnectionShown | None:
    """The record, if its attachment is not open on this host."""
    here = row.ledger is not None and row.ledger.host == row.about.host
    return None if here else row.shown


def connection_left(row: ConnectionRow) -> bool:
    shown = _nobodys(row)
    return shown is not None and shown.present is not False


def record_left(row: ConnectionRow) -> bool:
    shown = _nobodys(row)
    return shown is not None and shown.present is False


def storage_left(row: StorageRow) -> bool:
    explained = row.wanted or row.shown.recorded or row.shown.used
    return not explained and row.shown.kind not in {"mount", "secret"}


def mount_unused(row: StorageRow) -> bool:
    return row.shown.kind == "mount" and not (row.wanted or row.shown.recorded or row.shown.used)


def secret_left(row: StorageRow) -> bool:
    return row.shown.kind == "secret" and not row.wanted


def paths_faulty(row: StorageRow) -> bool:
    return row.shown.faulty and (row.shown.recorded or row.shown.used)


def always(row: Any) -> bool:  # noqa: ARG001
    """For rows that exist only as cases, and for facts of the log, which have no rows."""
    return True
