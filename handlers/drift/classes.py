"""The classes of drift: what can differ, as a table.  A new class is a new row here.

The simulation checks these classes, too, after each storm (tests/simulation): it must leave nothing
that a look would find.  The classes come from known leaks of Cinder, Nova and other systems that
attach volumes; `docs/reconciliation.md` has what an operator types for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from handlers.drift import predicates
from handlers.drift.rows import (
    SUBJECTS,
    AttachmentRow,
    ConnectionRow,
    DiskRow,
    Party,
    Row,
    ServerRow,
    StorageRow,
    Subject,
    UnlabelledRow,
    VolumeRow,
)


class Severity(StrEnum):
    """How urgent it is."""

    CRITICAL = "critical"  # data is at risk
    WARNING = "warning"  # something is stuck, lost or blocked
    INFO = "info"  # it wastes resources, and does no harm


@dataclass(frozen=True, kw_only=True)
class DriftClass:
    """One way to differ.

    `row`: None if no look at drift finds it: the view `drift` has facts of the log (decision 0058),
    and the observer of a Nova finds what has ended and is shown again (decision 0135).
    `is_drift`: the predicate on a row, called only if all `parties` are known.  None: the row does
    not say enough.  For a server it returns hosts (`hosts_of`).
    `repair`: a row of `handlers.drift.repairs`; None: `by_hand` says why, and what to do instead.
    `or_else`: the repair if the guest does not have what `repair` would keep.
    `again`: the parties that the repair asks again before it changes anything.
    `asked_for`: an operator must request the repair, whatever the settings say.
    `lasts_s`: seconds until a look confirms it, if longer than `judge.APART_S`.
    `shows`: an open finding means that a host shows a guest or volume that it should not have
    (handlers.results.presence).
    `stops_repairs`: while a finding is open, no repair and no automatic act on its volume begins,
    because the data may be another volume's.
    """

    name: str
    row: type[Row] | None
    parties: tuple[Party, ...]
    is_drift: Callable[[Any], Any]
    severity: Severity
    meaning: str
    repair: str | None = None
    or_else: str | None = None
    by_hand: str = ""
    again: tuple[Party, ...] = ()
    asked_for: bool = False
    lasts_s: float = 0.0
    shows: bool = False
    stops_repairs: bool = False

    def hosts_of(self, row: Row) -> frozenset[str]:
        """The hosts whose reports make the row a case of the class; it must be one."""
        if Party.HOST not in self.parties:
            return frozenset()
        if isinstance(row, ServerRow):
            hosts: frozenset[str] = self.is_drift(row)
            return hosts
        return frozenset() if row.about.host is None else frozenset({row.about.host})


_L, _C, _H = Party.LEDGER, Party.CINDER, Party.HOST
#: Seconds that Cinder may work on a volume before that is reported.
WORKS_S = 2 * 3600.0
_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO

CLASSES: tuple[DriftClass, ...] = (
    DriftClass(
        name="reservation_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.reservation_unknown,
        severity=_WARNING,
        meaning="Cinder reserves the volume for the server, and the ledger has no record of it: "
        "Cinder carried out a request after a time-out, or another client called Cinder.",
        repair="drop_attachment",
        again=(_L, _C),
    ),
    DriftClass(
        name="attachment_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_unknown,
        severity=_WARNING,
        meaning="Cinder has an attachment of the server that a host may use, and the ledger has "
        "no record of it.",
        repair="drop_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="owner_gone",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.owner_gone,
        severity=_WARNING,
        meaning="Cinder still has an attachment of a deleted server; its volume cannot be used or "
        "deleted.",
        repair="drop_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="owner_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.owner_unknown,
        severity=_CRITICAL,
        meaning="The volume may have one server only. Cinder has another attachment of it, for a "
        "server that the ledger does not know, or for none: both may write to it.",
        by_hand="Find its owner (`openstack volume attachment show ID`, `openstack server show "
        "SERVER`), who has to detach it there. Delete it in Cinder only if it is `reserved` and "
        "has no host.",
    ),
    DriftClass(
        name="attachment_lost",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_lost,
        severity=_CRITICAL,
        meaning="Cinder has deleted an attachment that the server still has: Cinder may give the "
        "volume to another server while the guest writes to it (CVE-2023-2088).",
        repair="replace_attachment",
        or_else="forget_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="attachment_unmapped",
        row=AttachmentRow,
        parties=(_L,),
        is_drift=predicates.attachment_unmapped,
        severity=_WARNING,
        meaning="The ledger has an open attachment that no device of the server uses.",
        by_hand="A bug of the ledger: save its history (`history attachment`) and report it.",
    ),
    DriftClass(
        name="attachment_status_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_status,
        severity=_WARNING,
        meaning="The attachment's status in Cinder does not match what the ledger did with it.",
        repair="complete_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="attachment_host_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_host,
        severity=_CRITICAL,
        meaning="Cinder names another host for the attachment than the one where the guest is.",
        repair="correct_attachment",
        again=(_L, _C, _H),
        asked_for=True,
    ),
    DriftClass(
        name="attachment_mountpoint_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_mountpoint,
        severity=_INFO,
        meaning="Cinder shows another device name than the disk has in the guest.",
        repair="correct_attachment",
        again=(_L, _C, _H),
        asked_for=True,
    ),
    DriftClass(
        name="attachment_mode_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_mode,
        severity=_WARNING,
        meaning="Cinder and the ledger disagree about whether the server may write.",
        by_hand="Detach the volume and attach it again: Cinder never changes the mode of an "
        "attachment, and a second one would take the disk from the guest when it replaces it.",
    ),
    DriftClass(
        name="connection_missing",
        row=AttachmentRow,
        parties=(_L, _H),
        is_drift=predicates.connection_missing,
        severity=_WARNING,
        meaning="The host has no record of a connection that the server uses: it could not "
        "disconnect it without Cinder.",
        by_hand="`attachment refresh` of the server writes the record again.",
    ),
    DriftClass(
        name="legacy_mapping",
        row=AttachmentRow,
        parties=(_L,),
        is_drift=predicates.legacy_mapping,
        severity=_INFO,
        meaning="The volume is attached by Cinder's old calls.",
        by_hand="`attachment convert` moves it to the new calls (S1).",
    ),
    DriftClass(
        name="attachment_ended",
        row=None,
        parties=(_L, _C),
        is_drift=predicates.always,
        severity=_WARNING,
        meaning="An observed Nova and its Cinder show an attachment again that has ended in the "
        "log: a database of theirs was restored. Nothing begins again there, so the ledger does "
        "not follow it.",
        by_hand="By Nova, migrate the server live, or detach the volume and attach it again: the "
        "ledger follows the new attachment.",
    ),
    DriftClass(
        name="volume_gone",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_gone,
        severity=_CRITICAL,
        meaning="The server has a volume that Cinder no longer has.",
        by_hand="If the data is needed, import the volume into Cinder again; else detach it.",
    ),
    DriftClass(
        name="volume_status_differs",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_status,
        severity=_WARNING,
        meaning="The volume's status does not match its attachments, and nothing is in progress.",
        repair="settle_volume",
        again=(_L, _C),
    ),
    DriftClass(
        name="volume_stuck",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_stuck,
        severity=_INFO,
        meaning="Cinder has worked on the volume for hours (creating, deleting, downloading, "
        "extending or retyping) and changed nothing; no operation explains it.",
        by_hand="Check the log of its cinder-volume. If that no longer works on it, let Cinder "
        "try again: if `deleting`, `openstack volume delete --force ID`; if never created, "
        "`openstack volume set --state error ID`, then delete it; else `openstack volume set "
        "--state in-use ID` if it is attached, `--state available` if not.",
        lasts_s=WORKS_S,
    ),
    DriftClass(
        name="volume_project_differs",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_project,
        severity=_WARNING,
        meaning="The volume belongs to another project than the server that has it: it was "
        "transferred while it was attached, or an administrator attached it.",
        by_hand="If this is intended: `drift ignore`. Else detach it; the project that has it now "
        "transfers it back (`openstack volume transfer request create ID`).",
    ),
    DriftClass(
        name="volume_of_nobody",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_of_nobody,
        severity=_WARNING,
        meaning="The volume has the ledger's mark, and no server ever had it: the ledger created "
        "it and nothing will delete it, or the mark was copied (a restored backup).",
        repair="delete_volume",
        again=(_L, _C),
        asked_for=True,
    ),
    DriftClass(
        name="guest_twice",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_of_twins,
        shows=True,
        severity=_CRITICAL,
        meaning="The guest runs on two hosts: both write to its volumes.",
        by_hand="Now stop the guest on the host that is not the server's; then look again.",
    ),
    DriftClass(
        name="guest_missing",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_without_guest,
        severity=_WARNING,
        meaning="The server's host does not have its guest (power state `nostate`). If no other "
        "host shows it, it is defined again by `server rebuild` and started by `server start`; or "
        "the server is deleted by `server forget`.",
        repair="forget_server",
        again=(_L, _H),
        asked_for=True,
    ),
    DriftClass(
        name="guest_elsewhere",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_elsewhere,
        shows=True,
        severity=_CRITICAL,
        meaning="A host has a guest whose server is on another host.",
        by_hand="Find out which host should have it; remove it from the other (`virsh undefine`).",
    ),
    DriftClass(
        name="guest_of_deleted",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_of_deleted,
        shows=True,
        severity=_WARNING,
        meaning="A host still has the guest of a deleted server.",
        repair="forget_guest",
        again=(_L, _H),
    ),
    DriftClass(
        name="guest_undefined",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_without_definition,
        severity=_WARNING,
        meaning="The guest runs, but its host has no definition of it: it vanishes when it stops. "
        "The server's next start defines it again from the ledger's data.",
        by_hand="On its host: `virsh dumpxml --inactive --security-info ID > FILE`, then `virsh "
        "define FILE`. This does not change the running guest.",
    ),
    DriftClass(
        name="power_differs",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_of_other_power,
        severity=_INFO,
        meaning="The guest is not in the power state that the ledger shows.",
        by_hand="The next inventory of the host corrects it; if it does not, restart its agent.",
    ),
    DriftClass(
        name="disk_missing",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_missing,
        severity=_WARNING,
        meaning="The guest lacks a disk of the server.",
        repair="plug_disk",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="disk_unknown",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_unknown,
        shows=True,
        severity=_CRITICAL,
        meaning="The guest has a disk of a volume that the ledger does not map to its server.",
        by_hand="The ledger takes no disk from a running guest by itself: detach it by hand. To "
        "keep the volume, attach it then by the API.",
    ),
    DriftClass(
        name="disk_definition_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_undefined,
        severity=_WARNING,
        meaning="A disk differs between the running guest and its definition: the next start "
        "would lose or change it.",
        repair="define_disk",
        again=(_L, _H),
    ),
    DriftClass(
        name="disk_device_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_device,
        severity=_INFO,
        meaning="The disk has another device name in the guest than in the ledger.",
        by_hand="Detach and attach the volume: it gets its name again.",
    ),
    DriftClass(
        name="disk_readonly_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_readonly,
        severity=_CRITICAL,
        meaning="The guest can write to a disk that is read-only for its server, or cannot write "
        "to a writable one.",
        repair="define_disk",
        again=(_L, _H),
    ),
    DriftClass(
        name="disk_source_differs",
        row=DiskRow,
        parties=(_H,),
        is_drift=predicates.disk_source,
        severity=_CRITICAL,
        meaning="The guest's disk is not the file, image or device that its host connected, or "
        "the device is now another disk: there is a snapshot above it, or another volume's data. "
        "The host refuses to detach it, and to start, move or remove the guest; but not if the "
        "storage gave its LUN to another volume.",
        by_hand="`virsh domblklist` shows its source. Merge a snapshot: `virsh blockcommit "
        "--active --pivot`. If it is another volume's data, stop the guest now, and find out "
        "which guest wrote what. If the storage changed it, a detach is allowed.",
        stops_repairs=True,
    ),
    DriftClass(
        name="disk_size_differs",
        row=DiskRow,
        parties=(_L, _C, _H),
        is_drift=predicates.disk_size,
        severity=_CRITICAL,
        meaning="The disk is smaller in the running guest than in Cinder, or larger than the "
        "host's device: the guest was not told that the volume was extended, or it is another "
        "volume.",
        by_hand="If Cinder has extended it, send the event again (`os-server-external-events`, "
        "`volume-extended`), or do a hard reboot. Else find out which volume it is before the "
        "guest writes to it.",
        stops_repairs=True,
    ),
    DriftClass(
        name="disk_unlabelled",
        row=UnlabelledRow,
        parties=(_H,),
        is_drift=predicates.always,
        shows=True,
        severity=_CRITICAL,
        meaning="The guest has a volume's disk without the ledger's serial: it was attached past "
        "the ledger, which cannot track it.",
        by_hand="Detach it by hand (`virsh detach-disk`), and attach the volume by the API.",
        stops_repairs=True,
    ),
    DriftClass(
        name="connection_left",
        row=ConnectionRow,
        parties=(_L, _H),
        is_drift=predicates.connection_left,
        shows=True,
        severity=_WARNING,
        meaning="The host has a volume connected for an attachment that no longer exists.",
        repair="release_connection",
        again=(_L, _H),
    ),
    DriftClass(
        name="record_left",
        row=ConnectionRow,
        parties=(_L, _H),
        is_drift=predicates.record_left,
        severity=_INFO,
        meaning="The host has a record of a connection that no longer exists.",
        repair="release_connection",
        again=(_L, _H),
    ),
    DriftClass(
        name="storage_left",
        row=StorageRow,
        parties=(_H,),
        is_drift=predicates.storage_left,
        severity=_INFO,
        meaning="The host has an unused session, map, loop device or dm-crypt mapping above a "
        "volume (`crypt/NAME`) that none of its records explains.",
        by_hand="It may be another program's. If not, remove it on the host: `cryptsetup close "
        "NAME`, or its volume cannot be disconnected. Remove devices, not sessions: other volumes "
        "share them.",
    ),
    DriftClass(
        name="mount_unused",
        row=StorageRow,
        parties=(_H,),
        is_drift=predicates.mount_unused,
        severity=_INFO,
        meaning="A share is mounted that no volume of this host uses.",
        by_hand="os-brick keeps mounts on purpose; unmount it if you retire the share.",
    ),
    DriftClass(
        name="secret_left",
        row=StorageRow,
        parties=(_L, _H),
        is_drift=predicates.secret_left,
        severity=_WARNING,
        meaning="The hypervisor has the passphrase of a volume that is not attached there.",
        repair="drop_secret",
        again=(_L, _H),
    ),
    DriftClass(
        name="paths_faulty",
        row=StorageRow,
        parties=(_H,),
        is_drift=predicates.paths_faulty,
        severity=_WARNING,
        meaning="A volume in use has no working path on its host.",
        by_hand="Check the fabric and the array; `attachment refresh` connects it again.",
    ),
    DriftClass(
        name="remnant",
        row=None,
        parties=(_L,),
        is_drift=predicates.always,
        severity=_WARNING,
        meaning="An operator skipped a step that would have removed this, and no operator has "
        "acknowledged it yet.",
        by_hand="Check whether it is there, remove it, then `remnant acknowledge`.",
    ),
    DriftClass(
        name="operation_parked",
        row=None,
        parties=(_L,),
        is_drift=predicates.always,
        severity=_WARNING,
        meaning="An operation waits for an operator.",
        by_hand="`operation show` lists what is pending and what you can do.",
    ),
)

BY_NAME: dict[str, DriftClass] = {each.name: each for each in CLASSES}


def subject_of(drift_class: DriftClass) -> Subject:
    """The kind of object that the class is about."""
    if drift_class.row is not None:
        return SUBJECTS[drift_class.row]
    facts = {"remnant": Subject.REMNANT, "operation_parked": Subject.OPERATION}
    return facts.get(drift_class.name, Subject.ATTACHMENT)
