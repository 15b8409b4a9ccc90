"""What steps do, and what is true of each whatever its flow.

A host's verbs are the contract with its agent (host_agent.shared.contract); the ledger's own are
here, and so is what the ledger does in place of a host that is fenced.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from host_agent.shared.contract import Verb

#: In the second place of a verb: it does something outside of the ledger (ledger.effects).
_OUT = True


class LedgerVerb(StrEnum):
    """What a step of the ledger itself does.  Names are stable for ever.

    Those that do nothing `outside` only record what is true.
    """

    outside: bool

    def __new__(cls, name: str, outside: bool = False) -> Self:
        verb = str.__new__(cls, name)
        verb._value_, verb.outside = name, outside
        return verb

    ATTACHMENT_RESERVE = "attachment_reserve", _OUT
    ATTACHMENT_DELETE = "attachment_delete", _OUT
    RESERVATION_TIDY = "reservation_tidy", _OUT  # keep a known one, delete an unknown one
    RESERVATION_CONVERT = "reservation_convert", _OUT  # from the old calls to a bare new one
    ATTACHMENTS_CLEAR = "attachments_clear", _OUT  # of a deleted server: delete unknown ones
    MAPPING_BIND = "mapping_bind"
    MAPPING_UNBIND = "mapping_unbind"
    MAPPING_SWITCH = "mapping_switch"  # to the new side's attachment
    MAPPING_SWITCH_KEEPING = "mapping_switch_keeping"  # the former one, until confirmed
    MAPPING_REPLACE = "mapping_replace"  # one of the two that a resized server has
    VOLUME_CREATE = "volume_create", _OUT
    VOLUME_AWAIT = "volume_await", _OUT  # until Cinder has made it
    VOLUME_UNMAKE = "volume_unmake", _OUT  # delete it, unless the server has it
    VOLUME_DELETE = "volume_delete", _OUT  # if it goes with its server
    VOLUME_REIMAGE = "volume_reimage", _OUT  # have Cinder write an image to it, and wait
    MIGRATION_COMPLETE = "migration_complete", _OUT  # tell Cinder that its migration is done
    MIGRATION_FAIL = "migration_fail", _OUT  # tell Cinder that it is not
    EXTENSION_COMPLETE = "extension_complete", _OUT  # tell a waiting Cinder that the guest has it
    EXTENSION_REVOKE = "extension_revoke", _OUT  # tell it so, unless it has taken it for true
    EXTENSION_FAIL = "extension_fail", _OUT  # tell it that the guest does not
    SNAPSHOT_TAKEN = "snapshot_taken", _OUT  # tell Cinder that the guest writes to its file
    SNAPSHOT_REVOKE = "snapshot_revoke", _OUT  # tell it that it does not, unless it went on
    SNAPSHOT_FAIL = "snapshot_fail", _OUT  # the same, where it was told nothing yet
    SNAPSHOT_AWAIT = "snapshot_await", _OUT  # until Cinder's attachment names that file
    SNAPSHOT_MERGED = "snapshot_merged", _OUT  # tell Cinder that the guest needs a file no more
    SNAPSHOT_KEEP = "snapshot_keep", _OUT  # tell it that the guest does
    ATTACHMENT_COMPLETE = "attachment_complete", _OUT  # of a host that cannot any more
    DISK_WAIVE = "disk_waive"  # these three: there is no host that could have it
    CONNECTION_WAIVE = "connection_waive"
    GUEST_WAIVE = "guest_waive"
    POWER_WAIVE = "power_waive"  # it is to run, or not; where, is for who takes it from there
    INSTANCE_FAIL = "instance_fail"  # ERROR until it is deleted
    INSTANCE_OFFLOAD = "instance_offload"
    INSTANCE_DELETE = "instance_delete"
    INSTANCE_RESIZED = "instance_resized"  # on its new host, to be confirmed or reverted
    INSTANCE_SETTLED = "instance_settled"  # confirmed, or reverted
    DRIFT_AGAIN = "drift_again", _OUT  # these five repair: whether the finding still holds
    ATTACHMENT_DROP = "attachment_drop", _OUT  # from Cinder: one that the ledger does not hold
    ATTACHMENT_FORGET = "attachment_forget"  # in the ledger: one that Cinder does not have
    VOLUME_SETTLE = "volume_settle", _OUT  # Cinder's status follows its attachments
    VOLUME_DROP = "volume_drop", _OUT  # one that we made, and no server has had
    NOTHING = "nothing"  # a place in the plan for an undo


AnyVerb = Verb | LedgerVerb

#: What the ledger does instead of a host that is fenced, or that does not exist: these let go.
INSTEAD: dict[AnyVerb, LedgerVerb] = {
    Verb.DISK_UNPLUG: LedgerVerb.DISK_WAIVE,
    Verb.VOLUME_DISCONNECT: LedgerVerb.CONNECTION_WAIVE,
    Verb.ATTACHMENT_DELETE: LedgerVerb.ATTACHMENT_DELETE,
    Verb.GUEST_REMOVE: LedgerVerb.GUEST_WAIVE,
}
#: And of one that is fenced: Cinder hears from the ledger what the host had done.
FENCED_INSTEAD: dict[AnyVerb, LedgerVerb] = {
    **INSTEAD,
    Verb.ATTACHMENT_COMPLETE: LedgerVerb.ATTACHMENT_COMPLETE,
    Verb.GUEST_START: LedgerVerb.POWER_WAIVE,
    Verb.DISK_SNAPSHOT: LedgerVerb.NOTHING,  # or not: while nobody writes, both files read alike
    Verb.DISK_FOLLOW: LedgerVerb.NOTHING,  # whoever starts the guest goes by what Cinder tells
}
#: Undone on it: what is put back is there no more, and comes back where the guest is started next.
UNDONE_INSTEAD: dict[AnyVerb, LedgerVerb] = {
    **FENCED_INSTEAD,
    **dict.fromkeys((Verb.GUEST_STOP, Verb.GUEST_PAUSE, Verb.GUEST_RESUME), LedgerVerb.NOTHING),
    Verb.GUEST_STAY: LedgerVerb.NOTHING,  # if its destination is fenced as well (handlers.progress)
    Verb.DISK_MERGE_ABORT: LedgerVerb.NOTHING,  # the job went with its guest
}
#: Undoing a pivot by these, a host makes sure that it still has what it was to let go of.  Of a
#: fenced one nobody knows whether it has, or will have when it comes back; what it is to have let
#: go of, it is told when it comes back.  So there the pivot is passed, by the fence.
PUTS_BACK: frozenset[AnyVerb] = frozenset({Verb.DISK_PLUG, Verb.GUEST_SPAWN})
#: After the pivot: in vain there, and done anew by whoever starts the guest next.
MOOT: dict[AnyVerb, LedgerVerb] = {
    **dict.fromkeys((Verb.ATTACHMENT_REFRESH, Verb.ATTACHMENT_UPDATE), LedgerVerb.NOTHING),
    **dict.fromkeys((Verb.VOLUME_WAIT_READY, Verb.DISK_PLUG), LedgerVerb.NOTHING),
    **dict.fromkeys((Verb.VOLUME_CONNECT, Verb.DISK_REPLACE, Verb.DISK_GROW), LedgerVerb.NOTHING),
    Verb.GUEST_SPAWN: LedgerVerb.POWER_WAIVE,
}
#: After it, too: the host has said before it that nobody there uses the volume.  Not where another
#: attachment stands for the same connection: that is not let go of.
RELEASED: dict[AnyVerb, LedgerVerb] = {Verb.CONNECTION_RELEASE: LedgerVerb.CONNECTION_WAIVE}
#: For these a fence has to vouch that the guest is not there (handlers.fences).
LET_GO = INSTEAD.keys() | RELEASED.keys()

#: The next step of a run begins only when the result of one of these is durable.  Everywhere
#: else the run's intent is enough, for done again all of it is right; but after these
#: the next step would take away what doing them again goes by:
DURABLE: frozenset[AnyVerb] = frozenset(
    {
        # The new attachment's id.  One that nobody has learnt is deleted as an orphan, so
        # nothing may have been connected by it.
        Verb.ATTACHMENT_CREATE,
        # That it is off the host.  Once Cinder has forgotten the attachment, a host without
        # a record of it cannot tell whether there is something left.
        Verb.VOLUME_DISCONNECT,
    }
)

#: What the undo of a pivot takes back besides it, being an *ensure*: a disk is plugged as it
#: was connected, or is connected anew.
TAKES_BACK: dict[AnyVerb, set[AnyVerb]] = {Verb.DISK_PLUG: {Verb.VOLUME_DISCONNECT}}
