"""The classes of drift: what can differ, as a table.  A new one is one more row here.

The simulation's checks at rest are these classes, too: what a storm must not leave is what a look
would find (tests/simulation).  The classes are those of Cinder's and Nova's known leaks and of
other attachers of volumes; `docs/reconciliation.md` says for each what to type.
"""

from __future__ import annotations

from handlers.drift import predicates
from handlers.drift.kinds import DriftClass, Severity
from handlers.drift.rows import (
    SUBJECTS,
    AttachmentRow,
    ConnectionRow,
    DiskRow,
    Party,
    ServerRow,
    StorageRow,
    Subject,
    UnlabelledRow,
    VolumeRow,
)

__all__ = ["BY_NAME", "CLASSES", "WORKS_S", "DriftClass", "Severity", "subject_of"]

_L, _C, _H = Party.LEDGER, Party.CINDER, Party.HOST
#: For how long Cinder may work on a volume until that is something to look at.
WORKS_S = 2 * 3600.0
_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO

CLASSES: tuple[DriftClass, ...] = (
    DriftClass(
        name="reservation_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.reservation_unknown,
        severity=_WARNING,
        meaning="Cinder reserves the volume for the server, and the ledger knows nothing of it: "
        "a request was carried out after its sender had given up, or somebody called Cinder.",
        repair="drop_attachment",
        again=(_L, _C),
    ),
    DriftClass(
        name="attachment_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_unknown,
        severity=_WARNING,
        meaning="Cinder has an attachment of the server that a host may use, and the ledger does "
        "not know it.",
        repair="drop_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="owner_gone",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.owner_gone,
        severity=_WARNING,
        meaning="Cinder keeps an attachment of a server that is deleted; its volume cannot be "
        "used or deleted.",
        repair="drop_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="owner_unknown",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.owner_unknown,
        severity=_CRITICAL,
        meaning="Cinder has an attachment of a server's volume, which is for one server alone, for "
        "another server that the ledger does not know, or for none: both may write to it.",
        by_hand="Find out whose it is (`openstack volume attachment show ID`, `openstack server "
        "show SERVER`) and have its owner detach it there. Delete it in Cinder only if it is "
        "`reserved` and names no host.",
    ),
    DriftClass(
        name="attachment_lost",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_lost,
        severity=_CRITICAL,
        meaning="Cinder has deleted an attachment that the server still has: the volume may be "
        "given to somebody else while the guest writes to it (CVE-2023-2088).",
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
        meaning="The ledger holds an attachment open that no device of the server goes through.",
        by_hand="A fault of the ledger: keep its history (`history attachment`) and report it.",
    ),
    DriftClass(
        name="attachment_status_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_status,
        severity=_WARNING,
        meaning="Cinder's status of the attachment is not what the ledger has done with it.",
        repair="complete_attachment",
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="attachment_host_differs",
        row=AttachmentRow,
        parties=(_L, _C),
        is_drift=predicates.attachment_host,
        severity=_CRITICAL,
        meaning="Cinder says that another host has the volume than the one where the guest is.",
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
        meaning="Cinder shows people another name of the disk than the one it has in the guest.",
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
        by_hand="Detach the volume and attach it again: Cinder keeps the mode of an attachment, "
        "and another one beside it would take the disk from the guest when it replaces this one.",
    ),
    DriftClass(
        name="connection_missing",
        row=AttachmentRow,
        parties=(_L, _H),
        is_drift=predicates.connection_missing,
        severity=_WARNING,
        meaning="The host has no record of a connection that the server uses: it could not be "
        "ended without Cinder's help.",
        by_hand="`attachment refresh` of the server writes the record anew.",
    ),
    DriftClass(
        name="legacy_mapping",
        row=AttachmentRow,
        parties=(_L,),
        is_drift=predicates.legacy_mapping,
        severity=_INFO,
        meaning="The volume is attached by Cinder's old calls.",
        by_hand="`attachment convert` brings it to the new ones (S1).",
    ),
    DriftClass(
        name="volume_gone",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_gone,
        severity=_CRITICAL,
        meaning="The server has a volume that Cinder does not have any more.",
        by_hand="If the data is needed, import the volume into Cinder again; else detach it.",
    ),
    DriftClass(
        name="volume_status_differs",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_status,
        severity=_WARNING,
        meaning="The volume's status does not fit its attachments, and nothing is under way.",
        repair="settle_volume",
        again=(_L, _C),
    ),
    DriftClass(
        name="volume_stuck",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_stuck,
        severity=_INFO,
        meaning="Cinder has been at work on the volume for hours (creating, deleting, downloading, "
        "extending or retyping), without changing anything, and no operation explains it.",
        by_hand="See in the log of its cinder-volume whether it is still at it. If it is not, let "
        "Cinder try again: `openstack volume delete --force ID` for what is being deleted; "
        "`openstack volume set --state error ID`, then delete it, for what was never made; else "
        "`openstack volume set --state in-use ID` if it is attached, `--state available` if not.",
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
        by_hand="If it is meant so: `drift ignore`. Else detach it and have it transferred back "
        "(`openstack volume transfer request create ID`, by the project that has it now).",
    ),
    DriftClass(
        name="volume_of_nobody",
        row=VolumeRow,
        parties=(_L, _C),
        is_drift=predicates.volume_of_nobody,
        severity=_WARNING,
        meaning="The volume carries the mark of one that we made, and no server has ever had it: "
        "we made it and nobody deletes it, or the mark was copied (a restored backup).",
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
        by_hand="Stop the guest on the host that is not the server's, now; then look again.",
    ),
    DriftClass(
        name="guest_missing",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_without_guest,
        severity=_WARNING,
        meaning="The host of the server does not have its guest. If no other host shows it, its "
        "owner has it defined again by `server rebuild` and started by `server start`, or is done "
        "with it (`server forget`); until then its power state is `nostate`.",
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
        by_hand="Find out where it is to be; remove it where it is not (`virsh undefine`).",
    ),
    DriftClass(
        name="guest_of_deleted",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_of_deleted,
        shows=True,
        severity=_WARNING,
        meaning="A host still has the guest of a server that is deleted.",
        repair="forget_guest",
        again=(_L, _H),
    ),
    DriftClass(
        name="guest_undefined",
        row=ServerRow,
        parties=(_L, _H),
        is_drift=predicates.hosts_without_definition,
        severity=_WARNING,
        meaning="The guest runs, and its host has no definition of it: when it stops, it is gone "
        "from there. The server's next start defines it anew, by what the ledger has kept.",
        by_hand="On its host: `virsh dumpxml --inactive --security-info ID > FILE`, then `virsh "
        "define FILE`, which changes nothing of the running guest.",
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
        meaning="The guest does not have a disk of the server's.",
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
        by_hand="If the volume is to stay, attach it once the disk is out of the guest; nothing "
        "is taken from a running guest unasked.",
    ),
    DriftClass(
        name="disk_definition_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_undefined,
        severity=_WARNING,
        meaning="The running guest and its definition differ about a disk: its next start would "
        "lose or change it.",
        repair="define_disk",
        again=(_L, _H),
    ),
    DriftClass(
        name="disk_device_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_device,
        severity=_INFO,
        meaning="The guest has the disk under another name than the ledger.",
        by_hand="Detach and attach the volume to give it its name again.",
    ),
    DriftClass(
        name="disk_readonly_differs",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_readonly,
        severity=_CRITICAL,
        meaning="The guest may write to a disk that is read-only for its server, or may not "
        "write to one that is not.",
        repair="define_disk",
        again=(_L, _H),
    ),
    DriftClass(
        name="disk_source_differs",
        row=DiskRow,
        parties=(_H,),
        is_drift=predicates.disk_source,
        severity=_CRITICAL,
        meaning="The guest's disk is on another file, image or device than its host has connected "
        "for it, or the device there is another disk by now: somebody has put a snapshot above it, "
        "or it is another volume's data. Its host refuses to detach it, and to start, move or "
        "remove the guest; but not if the storage has given its LUN's number to another volume.",
        by_hand="`virsh domblklist` says where it is. Bring what was written back (a snapshot: "
        "`virsh blockcommit --active --pivot`); if it is another volume's data, stop the guest "
        "now, and find out who wrote what. What the storage has changed is detached then.",
        stops_repairs=True,
    ),
    DriftClass(
        name="disk_size_differs",
        row=DiskRow,
        parties=(_L, _C, _H),
        is_drift=predicates.disk_size,
        severity=_CRITICAL,
        meaning="The running guest has less of the volume than Cinder says that there is, or more "
        "than the host's device has: it was not told that the volume has grown, or it is another "
        "volume.",
        by_hand="If Cinder has extended it, send the event again (`os-server-external-events`, "
        "`volume-extended`), or reboot the server hard; else find out which volume it is before "
        "anything is written.",
        stops_repairs=True,
    ),
    DriftClass(
        name="disk_unlabelled",
        row=UnlabelledRow,
        parties=(_H,),
        is_drift=predicates.always,
        shows=True,
        severity=_CRITICAL,
        meaning="The guest has a disk without our serial whose source is a volume's: somebody "
        "attached it past us, and nothing of ours sees it.",
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
        meaning="The host has a volume connected by an attachment that is not there any more.",
        repair="release_connection",
        again=(_L, _H),
    ),
    DriftClass(
        name="record_left",
        row=ConnectionRow,
        parties=(_L, _H),
        is_drift=predicates.record_left,
        severity=_INFO,
        meaning="The host keeps a record of a connection that is not there any more.",
        repair="release_connection",
        again=(_L, _H),
    ),
    DriftClass(
        name="storage_left",
        row=StorageRow,
        parties=(_H,),
        is_drift=predicates.storage_left,
        severity=_INFO,
        meaning="The host has a session, map, loop device or mapping of dm-crypt above a volume "
        "(`crypt/NAME`) that none of its records explains, and nobody uses.",
        by_hand="It may be somebody else's. If it is not, end it on the host (`cryptsetup close "
        "NAME`, without which its volume is not disconnected; a shared session serves others: "
        "remove devices, not sessions).",
    ),
    DriftClass(
        name="mount_unused",
        row=StorageRow,
        parties=(_H,),
        is_drift=predicates.mount_unused,
        severity=_INFO,
        meaning="A share is mounted that no volume of this host uses.",
        by_hand="os-brick keeps mounts on purpose; unmount it if the share is to go.",
    ),
    DriftClass(
        name="secret_left",
        row=StorageRow,
        parties=(_L, _H),
        is_drift=predicates.secret_left,
        severity=_WARNING,
        meaning="The hypervisor holds the passphrase of a volume that is not attached there.",
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
        by_hand="Look at the fabric and the array; `attachment refresh` connects it anew.",
    ),
    DriftClass(
        name="remnant",
        row=None,
        parties=(_L,),
        is_drift=predicates.always,
        severity=_WARNING,
        meaning="An operator passed over a step that would have removed this, and nobody has "
        "said yet what became of it.",
        by_hand="Look whether it is there, remove it, and say so (`remnant acknowledge`).",
    ),
    DriftClass(
        name="operation_parked",
        row=None,
        parties=(_L,),
        is_drift=predicates.always,
        severity=_WARNING,
        meaning="An operation waits for a person.",
        by_hand="`operation show` says what is left and what may be done.",
    ),
)

BY_NAME: dict[str, DriftClass] = {each.name: each for each in CLASSES}


def subject_of(drift_class: DriftClass) -> Subject:
    """What a class is about."""
    if drift_class.row is not None:
        return SUBJECTS[drift_class.row]
    return Subject.REMNANT if drift_class.name == "remnant" else Subject.OPERATION
