"""The classes of drift of guests' disks: a part of the table of `handlers.drift.classes`."""

from __future__ import annotations

from handlers.drift import predicates
from handlers.drift.kinds import DriftClass, Repair, Severity
from handlers.drift.rows import DiskRow, Party, UnlabelledRow

_L, _C, _H = Party.LEDGER, Party.CINDER, Party.HOST
_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO

DISK_CLASSES: tuple[DriftClass, ...] = (
    DriftClass(
        name="disk_missing",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_missing,
        severity=_WARNING,
        meaning="The guest does not have a disk of the server's.",
        repair=Repair.PLUG_DISK,
        again=(_L, _C, _H),
    ),
    DriftClass(
        name="disk_unknown",
        row=DiskRow,
        parties=(_L, _H),
        is_drift=predicates.disk_unknown,
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
        repair=Repair.DEFINE_DISK,
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
        repair=Repair.DEFINE_DISK,
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
        "remove the guest.",
        by_hand="`virsh domblklist` says where it is. Bring what was written back (a snapshot: "
        "`virsh blockcommit --active --pivot`); if it is another volume's data, stop the guest "
        "now, and find out who wrote what.",
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
        severity=_CRITICAL,
        meaning="The guest has a disk without our serial whose source is a volume's: somebody "
        "attached it past us, and nothing of ours sees it.",
        by_hand="Detach it by hand (`virsh detach-disk`), and attach the volume by the API.",
        stops_repairs=True,
    ),
)
