"""Put another volume behind a disk of a running guest (S1, swap volume).

One table for both who may ask.  A user's swap ends with the new volume's id; Cinder's
migration is told how it ended, and says which id the volume keeps.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import COPIED_FOR_CINDER, LET_GO
from handlers.flows.stages import RESERVED, SWITCHED, completed_on, let_go_by
from host_agent.shared.contract.messages import Verb

_COPIED = (
    # "fail API call if we can't create that attachment"
    RESERVED,
    Stage(
        Place.HOST,
        (
            Step("update", Verb.ATTACHMENT_UPDATE, undo=Verb.ATTACHMENT_DELETE),
            Step("ready", Verb.VOLUME_WAIT_READY),
            Step("connect", Verb.VOLUME_CONNECT, undo=Verb.VOLUME_DISCONNECT),
            # Mirrors, and when both are equal switches over: the old one is then out.
            Step("copy", Verb.DISK_COPY, undo=Verb.DISK_COPY_ABORT),
        ),
        side=Side.NEW,
    ),
    # At once: from here on the guest's data are on the new volume, and there only.
    SWITCHED,
    completed_on(Place.HOST),
    let_go_by(Place.HOST),
)

SWAP = Flow(name="swap", volumes=LET_GO, pivot="copy", stages=_COPIED)

MIGRATE_VOLUME = Flow(
    name="migrate_volume",
    volumes=COPIED_FOR_CINDER,
    pivot="copy",
    stages=(
        # Undone last: Cinder deletes the new volume when it hears of a failure.
        Stage(
            Place.LEDGER,
            (Step("answer", LedgerVerb.CHECKPOINT, undo=LedgerVerb.MIGRATION_FAIL),),
            side=Side.NEW,
        ),
        *_COPIED,
        Stage(
            Place.LEDGER,
            (Step("finish", LedgerVerb.MIGRATION_COMPLETE),),
            side=Side.NEW,
        ),
    ),
)
