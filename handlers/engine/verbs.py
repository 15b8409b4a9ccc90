"""What steps do, and what is true of each whatever its flow: one row for each verb.

A host's verbs are the contract with its agent (host_agent.shared.contract.messages); the ledger's
own are here.  Two are done on both sides, and have one row.  docs/flows/verbs.md shows the rows.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial

from aggregates.remnant import RemnantKind
from host_agent.shared.contract.backoff import wait_s
from host_agent.shared.contract.messages import Verb


class LedgerVerb(StrEnum):
    """What a step of the ledger itself does.  Names are stable for ever."""

    ATTACHMENT_RESERVE = "attachment_reserve"
    ATTACHMENT_DELETE = "attachment_delete"
    RESERVATION_TIDY = "reservation_tidy"
    RESERVATION_CONVERT = "reservation_convert"
    ATTACHMENTS_CLEAR = "attachments_clear"
    MAPPING_BIND = "mapping_bind"
    MAPPING_UNBIND = "mapping_unbind"
    MAPPING_SWITCH = "mapping_switch"
    MAPPING_SWITCH_KEEPING = "mapping_switch_keeping"
    MAPPING_REPLACE = "mapping_replace"
    VOLUME_CREATE = "volume_create"
    VOLUME_AWAIT = "volume_await"
    VOLUME_UNMAKE = "volume_unmake"
    VOLUME_DELETE = "volume_delete"
    VOLUME_REIMAGE = "volume_reimage"
    MIGRATION_COMPLETE = "migration_complete"
    MIGRATION_FAIL = "migration_fail"
    EXTENSION_COMPLETE = "extension_complete"
    EXTENSION_REVOKE = "extension_revoke"
    EXTENSION_FAIL = "extension_fail"
    SNAPSHOT_TAKEN = "snapshot_taken"
    SNAPSHOT_REVOKE = "snapshot_revoke"
    SNAPSHOT_FAIL = "snapshot_fail"
    SNAPSHOT_AWAIT = "snapshot_await"
    SNAPSHOT_MERGED = "snapshot_merged"
    SNAPSHOT_KEEP = "snapshot_keep"
    ATTACHMENT_COMPLETE = "attachment_complete"
    DISK_WAIVE = "disk_waive"
    CONNECTION_WAIVE = "connection_waive"
    GUEST_WAIVE = "guest_waive"
    POWER_WAIVE = "power_waive"
    INSTANCE_FAIL = "instance_fail"
    INSTANCE_OFFLOAD = "instance_offload"
    INSTANCE_DELETE = "instance_delete"
    INSTANCE_RESIZED = "instance_resized"
    INSTANCE_SETTLED = "instance_settled"
    DRIFT_AGAIN = "drift_again"
    ATTACHMENT_DROP = "attachment_drop"
    ATTACHMENT_FORGET = "attachment_forget"
    VOLUME_SETTLE = "volume_settle"
    VOLUME_DROP = "volume_drop"
    CHECKPOINT = "nothing"


AnyVerb = Verb | LedgerVerb


class Fence(StrEnum):
    """When the ledger does a step in place of a host that is fenced, or that does not exist."""

    #: The step only lets go: always, if the fence vouches that the guest is not there
    #: (handlers.engine.fences).
    LETS_GO = "lets go"
    #: Cinder hears from the ledger what the host had done, or nothing needs to be done.
    ALWAYS = "always"
    #: As an undo: what is put back is there no more, and comes back where the guest starts next.
    UNDO = "as an undo"
    #: After the pivot: in vain there, and done anew by whoever starts the guest next.
    MOOT = "after the pivot"
    #: After it, too, if the fence vouches: the host has said before it that nobody there uses the
    #: volume.  Not where another attachment stands for the same connection: that stays.
    RELEASED = "after the pivot, of one attachment"


#: For these a fence has to vouch that the guest is not there.
VOUCHED = frozenset({Fence.LETS_GO, Fence.RELEASED})


@dataclass(frozen=True)
class RetryPolicy:
    """How often a step is tried again: `attempts` in all; waits double from `first_s` to `max_s`.

    A FINAL error is not tried again.  RETRYABLE and UNKNOWN ones are: every step is an *ensure*,
    so trying again after an unknown outcome is right.  When the attempts are used up the step has
    failed.
    """

    attempts: int = 6
    first_s: float = 1.0
    max_s: float = 60.0

    def delay_s(self, attempts: int, *, patient: bool = False) -> float | None:
        """Seconds to wait after `attempts` attempts, or None if they are used up.

        For a `patient` plan they never are: release work goes on until all is released.  Nor where
        a step waits for others (aggregates.operation.AWAITED).
        """
        used_up = attempts >= self.attempts and not patient
        return None if used_up else wait_s(attempts, self.first_s, self.max_s)


@dataclass(frozen=True)
class VerbSpec:
    """What is true of a verb.

    `words`: what it does, as an order.  `call`: what is said to its other end, `to`.  `outside`: as
    a step of the ledger it does something outside of it (ledger.core.effects); all others only
    record what is true.  `fence`: when the ledger does `instead` (None: nothing) in its place.

    `durable`: the next step of a run begins only when its result is durable.  Everywhere else the
    run's intent is enough, for done again all of it is right; but after these the next step would
    take away what doing them again goes by.

    As the undo of a pivot: `puts_back`: the host makes sure that it still has what it was to let go
    of.  Of a fenced one nobody knows whether it has, or will have when it comes back; so there the
    pivot is passed, by the fence.  `takes_back`: what it takes back besides the pivot.

    `starts`: after it somebody writes to a volume who did not before.  `frees`: after it a volume,
    or a server, is somebody's or nobody's that it was not before (handlers.results.presence).
    `reserves`: it makes an attachment that Cinder did not have.  `keeps_connections`: it neither
    connects nor disconnects what a host has.  `keeps_disks`: it leaves the disks that guests have,
    and what hosts have connected for them, as they are (handlers.engine.claims).

    `remnant`: what is still there if it is not done; None: it puts something there, or only records
    what is so.  `asks_only`: a host is asked it before it has shown that it holds nothing of
    others.  `since`: the service version from which agents know it; 0: as old as commands are.
    """

    words: str
    call: str
    _: KW_ONLY
    to: str
    outside: bool = False
    retry: RetryPolicy = RetryPolicy()
    fence: Fence | None = None
    instead: LedgerVerb | None = None
    durable: bool = False
    puts_back: bool = False
    takes_back: AnyVerb | None = None
    starts: bool = False
    frees: bool = False
    reserves: bool = False
    keeps_connections: bool = False
    keeps_disks: bool = False
    remnant: RemnantKind | None = None
    asks_only: bool = False
    since: int = 0


_cinder = partial(VerbSpec, to="Cinder", outside=True)
_ledger = partial(VerbSpec, to="ledger")
_brick = partial(VerbSpec, to="os-brick")
_libvirt = partial(VerbSpec, to="libvirt")
#: Their adapters already try many times and for long themselves.
_ONCE_MORE = RetryPolicy(attempts=2)
_PATIENT = RetryPolicy(attempts=100, max_s=5.0)

# A row is to read as one, not as a column of arguments.
# fmt: off
VERBS: dict[str, VerbSpec] = {
    LedgerVerb.ATTACHMENT_RESERVE: _cinder(
        "reserve the volume in Cinder (attachment without connector)",
        "attachment create, no connector", reserves=True),
    LedgerVerb.RESERVATION_TIDY: _cinder("keep the reservation; delete unknown ones",
        "attachment delete, only an unknown one", remnant=RemnantKind.ATTACHMENT),
    LedgerVerb.RESERVATION_CONVERT: _cinder(
        "put a reservation in the place of the old calls' record",
        "attachment create, no connector; old calls' record away"),
    LedgerVerb.ATTACHMENTS_CLEAR: _cinder("delete unknown attachments of the server",
        "attachment delete, all unknown ones of the server", remnant=RemnantKind.ATTACHMENT),
    LedgerVerb.MAPPING_BIND: _ledger("record the device of the server", "record the mapping"),
    LedgerVerb.MAPPING_UNBIND: _ledger("forget the device of the server", "end the mapping"),
    LedgerVerb.MAPPING_SWITCH: _ledger("let the server have the volume through this attachment",
        "point the mapping to it"),
    LedgerVerb.MAPPING_SWITCH_KEEPING: _ledger(
        "the same, and keep the old one until confirm or revert",
        "point the mapping to it, keep the former"),
    LedgerVerb.MAPPING_REPLACE: _ledger("put this attachment in the former one's place",
        "put it in the former one's place"),
    LedgerVerb.VOLUME_CREATE: _cinder("create the volume in Cinder, if it is to be made",
        "volume create, if it does not exist"),
    # A volume made from an image takes minutes until it can be reserved (nova: 180 s), or deleted.
    LedgerVerb.VOLUME_AWAIT: _cinder("wait until Cinder has made the volume",
        "volume show, until it is made", retry=_PATIENT),
    LedgerVerb.VOLUME_UNMAKE: _cinder("delete the volume that was made, unless the server has it",
        "volume delete, if we made it and no mapping has it", remnant=RemnantKind.VOLUME,
        retry=_PATIENT),
    LedgerVerb.VOLUME_DELETE: _cinder("delete the volume in Cinder, if it goes with the server",
        "volume delete, if it goes with the server", frees=True, remnant=RemnantKind.VOLUME),
    # As long as Cinder takes to write an image: an hour and a half.  It tells when it has.
    LedgerVerb.VOLUME_REIMAGE: _cinder(
        "have Cinder write the image to the volume, and wait until it has",
        "reimage; volume show, until it is reserved again", retry=RetryPolicy(attempts=100),
        starts=True),
    LedgerVerb.MIGRATION_COMPLETE: _cinder("tell Cinder that its migration is done",
        "migrate_volume_completion", remnant=RemnantKind.MIGRATION),
    LedgerVerb.MIGRATION_FAIL: _cinder("tell Cinder that its migration failed",
        "migrate_volume_completion, error", remnant=RemnantKind.MIGRATION),
    LedgerVerb.EXTENSION_COMPLETE: _cinder("tell Cinder that its extension is done, if it waits",
        "extend_volume_completion", keeps_disks=True),
    LedgerVerb.EXTENSION_REVOKE: _cinder("tell Cinder that its extension failed, if it waits",
        "extend_volume_completion, error", keeps_disks=True),
    LedgerVerb.EXTENSION_FAIL: _cinder("tell Cinder that its extension failed, if it waits",
        "extend_volume_completion, error", keeps_disks=True),
    LedgerVerb.SNAPSHOT_TAKEN: _cinder("tell Cinder that the guest writes to the snapshot's file",
        "update_snapshot_status, 90%"),
    LedgerVerb.SNAPSHOT_REVOKE: _cinder("tell Cinder that the snapshot failed, unless it went on",
        "update_snapshot_status, error"),
    LedgerVerb.SNAPSHOT_FAIL: _cinder("tell Cinder that the snapshot failed, if it waits",
        "update_snapshot_status, error"),
    # Cinder looks every ten seconds, and then has its own work to do.
    LedgerVerb.SNAPSHOT_AWAIT: _cinder("wait until Cinder's attachment names the snapshot's file",
        "attachment show, until it names the file", retry=_PATIENT),
    LedgerVerb.SNAPSHOT_MERGED: _cinder(
        "tell Cinder that the guest does without the file, if it waits",
        "update_snapshot_status, 90%"),
    LedgerVerb.SNAPSHOT_KEEP: _cinder("tell Cinder that the guest keeps the file, if it waits",
        "update_snapshot_status, error_deleting"),
    LedgerVerb.DISK_WAIVE: _ledger("take the disk as unplugged: no guest has it",
        "no guest has the disk"),
    LedgerVerb.CONNECTION_WAIVE: _ledger("take the volume as disconnected: no host has it",
        "no host could be connected"),
    LedgerVerb.GUEST_WAIVE: _ledger("take the guest as removed: no host has it",
        "no host could have the guest"),
    LedgerVerb.POWER_WAIVE: _ledger(
        "record whether it is to run, for who takes it from the fenced host",
        "guest to run there, or not"),
    LedgerVerb.INSTANCE_FAIL: _ledger("put the server into ERROR until it is deleted",
        "server in ERROR until deleted"),
    LedgerVerb.INSTANCE_OFFLOAD: _ledger("record that the server is on no host",
        "server on no host", frees=True),
    LedgerVerb.INSTANCE_DELETE: _ledger("record that the server is deleted", "server deleted",
        frees=True),
    LedgerVerb.INSTANCE_RESIZED: _ledger("record that the server is to be confirmed or reverted",
        "server to be confirmed or reverted"),
    LedgerVerb.INSTANCE_SETTLED: _ledger("record that the resize is confirmed or reverted",
        "server as any other again"),
    LedgerVerb.DRIFT_AGAIN: _ledger("look again: do nothing unless the finding still holds",
        "look again, with Cinder; nothing is done unless it holds", keeps_disks=True, outside=True),
    # In Cinder alone: what no host may have connected.
    LedgerVerb.ATTACHMENT_DROP: _cinder("delete the unused attachment from Cinder",
        "attachment delete, of an unused one", keeps_disks=True, frees=True),
    LedgerVerb.ATTACHMENT_FORGET: _ledger("record that Cinder does not have the attachment",
        "Cinder does not have the attachment", frees=True),
    LedgerVerb.VOLUME_SETTLE: _cinder("let Cinder set the volume's status by its attachments",
        "roll_detaching, or unreserve", keeps_disks=True),
    LedgerVerb.VOLUME_DROP: _cinder("delete the never used volume from Cinder",
        "volume delete, of a never used one", frees=True),
    LedgerVerb.CHECKPOINT: _ledger("nothing", "nothing", keeps_disks=True),
    Verb.ATTACHMENT_UPDATE: _cinder("give Cinder this host's connector",
        "attachment update with connector", fence=Fence.MOOT),
    Verb.VOLUME_WAIT_READY: _cinder("wait until the volume is provisioned",
        "volume show until ready", fence=Fence.MOOT, retry=RetryPolicy(attempts=3)),
    Verb.VOLUME_CONNECT: _brick("connect the volume to the host (os-brick)", "connect volume",
        fence=Fence.MOOT),
    # It is an *ensure*: a disk is plugged as it was connected, or is connected anew.
    Verb.DISK_PLUG: _libvirt("plug the disk into the guest (libvirt)",
        "attach device, live and persistent", fence=Fence.MOOT, puts_back=True, frees=True,
        takes_back=Verb.VOLUME_DISCONNECT),
    Verb.ATTACHMENT_COMPLETE: _cinder("tell Cinder that the attachment is in use",
        "attachment complete", fence=Fence.ALWAYS, instead=LedgerVerb.ATTACHMENT_COMPLETE,
        keeps_disks=True),
    Verb.DISK_UNPLUG: _libvirt("unplug the disk from the guest (libvirt)",
        "detach device, live and persistent", fence=Fence.LETS_GO, instead=LedgerVerb.DISK_WAIVE,
        remnant=RemnantKind.DISK, retry=_ONCE_MORE),
    # Durable is that it is off the host.  Once Cinder has forgotten the attachment, a host without
    # a record of it cannot tell whether there is something left.
    Verb.VOLUME_DISCONNECT: _brick("disconnect the volume from the host (os-brick)",
        "disconnect volume", fence=Fence.LETS_GO, instead=LedgerVerb.CONNECTION_WAIVE, durable=True,
        remnant=RemnantKind.CONNECTION),
    Verb.ATTACHMENT_DELETE: _cinder("delete the attachment in Cinder", "attachment delete",
        fence=Fence.LETS_GO, instead=LedgerVerb.ATTACHMENT_DELETE, frees=True,
        remnant=RemnantKind.ATTACHMENT),
    # Durable is the new attachment's id.  One that nobody has learnt is deleted as unknown, so
    # nothing may have been connected by it.
    Verb.ATTACHMENT_CREATE: _cinder("create an attachment with this host's connector in Cinder",
        "attachment create with connector", durable=True, reserves=True),
    Verb.ATTACHMENT_CONVERT: _cinder(
        "put an attachment in the place of the old calls' record in Cinder",
        "attachment create, old calls' record away"),
    Verb.ATTACHMENT_REFRESH: _cinder("get the connection information from Cinder again",
        "attachment update, same host", fence=Fence.MOOT),
    Verb.DISK_REPLACE: _libvirt("define the disk by its new connection (libvirt)",
        "redefine the disk", fence=Fence.MOOT),
    Verb.DISK_GROW: _libvirt("see the volume's new size (os-brick, libvirt)", "grow the disk",
        fence=Fence.MOOT, keeps_connections=True, keeps_disks=True),
    Verb.DISK_COPY: _libvirt("copy the disk to the new volume and switch over (libvirt)",
        "mirror the disk, then pivot", retry=_ONCE_MORE),
    Verb.DISK_COPY_ABORT: _libvirt("end the copy and stay on the old volume (libvirt)",
        "end the mirror, keep the old disk", remnant=RemnantKind.DISK),
    # Or not: while nobody writes, both files read alike; whoever starts the guest goes by Cinder.
    Verb.DISK_SNAPSHOT: _libvirt("let the guest write to the file above its present one (libvirt)",
        "external snapshot of the disk", fence=Fence.ALWAYS),
    Verb.DISK_SNAPSHOT_REVERT: _libvirt("let the guest write to the file below again (libvirt)",
        "commit the first file, then pivot"),
    Verb.DISK_FOLLOW: _libvirt(
        "define the disk by what Cinder tells now, and record that (libvirt)",
        "redefine the disk, if need be", fence=Fence.ALWAYS),
    Verb.DISK_MERGE: _libvirt("put the file's data into another one of the disk (libvirt)",
        "commit or pull a file", retry=_ONCE_MORE),
    # The job went with its guest.
    Verb.DISK_MERGE_ABORT: _libvirt("end that, and keep the file, if it is not too late (libvirt)",
        "end the block job", fence=Fence.UNDO),
    Verb.GUEST_SPAWN: _libvirt("define the guest with its disks, and start it if wanted (libvirt)",
        "define the guest, start it if wanted", fence=Fence.MOOT, instead=LedgerVerb.POWER_WAIVE,
        puts_back=True, starts=True),
    Verb.GUEST_START: _libvirt("start the guest as it is defined, if wanted (libvirt)",
        "start the guest if wanted", fence=Fence.ALWAYS, instead=LedgerVerb.POWER_WAIVE,
        starts=True),
    Verb.GUEST_STOP: _libvirt("shut the guest down (libvirt)", "shut the guest down",
        fence=Fence.UNDO),
    Verb.GUEST_PAUSE: _libvirt("pause the guest (libvirt)", "suspend the guest", fence=Fence.UNDO),
    Verb.GUEST_RESUME: _libvirt("resume the guest (libvirt)", "resume the guest", fence=Fence.UNDO,
        starts=True),
    Verb.GUEST_REMOVE: _libvirt("stop and undefine the guest (libvirt)",
        "stop and undefine the guest", fence=Fence.LETS_GO, instead=LedgerVerb.GUEST_WAIVE,
        remnant=RemnantKind.GUEST),
    Verb.GUEST_MIGRATE: _libvirt("move the running guest to the destination (libvirt)",
        "migrate live to the destination", starts=True, retry=_ONCE_MORE),
    # If its destination is fenced as well (handlers.results.progress).
    Verb.GUEST_STAY: _libvirt("end the migration, if it is not too late (libvirt)",
        "end the migration, if it still runs", fence=Fence.UNDO, remnant=RemnantKind.GUEST),
    Verb.GUEST_FIND: _libvirt("look whether the migration has brought the guest (libvirt)",
        "look whether the guest has come", asks_only=True),
    Verb.DRIFT_LOOK: _libvirt("say what the host has of the volume and the guest",
        "look what guests and records have", keeps_disks=True),
    Verb.DISK_VERIFY: _libvirt("make sure that the guest's disk is the volume (libvirt)",
        "make sure that the disk is the volume", keeps_disks=True),
    Verb.CONNECTION_RELEASE: _brick(
        "disconnect by the host's own record, and forget that (os-brick)",
        "disconnect volume, by the host's record", fence=Fence.RELEASED,
        instead=LedgerVerb.CONNECTION_WAIVE),
    Verb.SECRET_DROP: _libvirt("let the hypervisor forget the volume's passphrase (libvirt)",
        "undefine the secret"),
}
# fmt: on

#: Twice the longest delay: clocks need not agree to the second.
PUT_OFF_MAX_S = 2 * max(spec.retry.max_s for spec in VERBS.values())


def is_due(at: float, now: float) -> bool:
    """Whether a step that was put off until `at` is to be tried again.

    None waits for longer than the longest delay.  One that seems to was put off when the clock
    was ahead, and it has been set back since: it is due.
    """
    return not now < at <= now + PUT_OFF_MAX_S
