"""Let a guest see that a volume of its has grown: Cinder tells so (`volume-extended`).

One operation for each server that has the volume.  Cinder has extended it already, and has no
call by which to hear that the guest does not see it: so what fails parks, and says so.  A Cinder
that waits for the guest (3.71, `extending`) is told how it ended, and shows `error_extending`.
Only looking again and growing is done, so any of it may be done again, at any time.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import EXTENDED_FOR_CINDER
from host_agent.shared.contract.messages import Verb

_GROWN = Stage(Place.HOST, (Step("grow", Verb.DISK_GROW),))

GROW = Flow(
    name="grow",
    pivot="begin",
    exclusive=False,
    asks=Ask.NOTHING,
    # There is no way back: a volume does not shrink.
    stages=(
        Stage(Place.LEDGER, (Step("begin", LedgerVerb.CHECKPOINT),)),
        _GROWN,
        # Whether Cinder waits may not have been known.
        Stage(Place.LEDGER, (Step("finish", LedgerVerb.EXTENSION_COMPLETE),)),
    ),
)

GROW_FOR_CINDER = Flow(
    name="grow_for_cinder",
    volumes=EXTENDED_FOR_CINDER,
    pivot="finish",
    exclusive=False,
    asks=Ask.NOTHING,
    stages=(
        Stage(
            Place.LEDGER,
            (Step("answer", LedgerVerb.CHECKPOINT, undo=LedgerVerb.EXTENSION_FAIL),),
        ),
        _GROWN,
        Stage(
            Place.LEDGER,
            (Step("finish", LedgerVerb.EXTENSION_COMPLETE, undo=LedgerVerb.EXTENSION_REVOKE),),
        ),
    ),
)
