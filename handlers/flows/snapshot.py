"""Snapshots that Cinder has the guest take and delete, of a volume in use that is files on a share.

Cinder makes the file above the present one, calls, and waits for what it is told of the snapshot
(its remotefs driver).  Told that the guest writes to the new file, it names that one in the
attachment: until then nobody may start the guest by what Cinder tells.  Told that it does not, it
shows `error`.  A file that the guest does without, Cinder deletes.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.messages import Verb

SNAPSHOT = Flow(
    name="snapshot",
    pivot="tell",
    asks=Ask.NOTHING,
    stages=(
        Stage(
            Place.LEDGER, (Step("answer", LedgerVerb.CHECKPOINT, undo=LedgerVerb.SNAPSHOT_FAIL),)
        ),
        Stage(Place.HOST, (Step("take", Verb.DISK_SNAPSHOT, undo=Verb.DISK_SNAPSHOT_REVERT),)),
        Stage(
            Place.LEDGER,
            (Step("tell", LedgerVerb.SNAPSHOT_TAKEN, undo=LedgerVerb.SNAPSHOT_REVOKE),),
        ),
        Stage(Place.LEDGER, (Step("await", LedgerVerb.SNAPSHOT_AWAIT),)),
        Stage(Place.HOST, (Step("follow", Verb.DISK_FOLLOW),)),
    ),
)

DELETE_SNAPSHOT = Flow(
    name="delete_snapshot",
    pivot="merge",
    asks=Ask.NOTHING,
    stages=(
        Stage(
            Place.LEDGER, (Step("answer", LedgerVerb.CHECKPOINT, undo=LedgerVerb.SNAPSHOT_KEEP),)
        ),
        Stage(Place.HOST, (Step("merge", Verb.DISK_MERGE, undo=Verb.DISK_MERGE_ABORT),)),
        Stage(Place.LEDGER, (Step("tell", LedgerVerb.SNAPSHOT_MERGED),)),
    ),
)
