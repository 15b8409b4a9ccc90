"""Move a guest to another host, or another size, with a way back (S1, migrate).

From the start until the user decides, both hosts have an attachment of their own.
Confirming gives up the source's, reverting the destination's; both only go forward, for
what either gives up first cannot be had again.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import TAKEN_ELSEWHERE
from handlers.flows.stages import (
    NO_WAY_BACK,
    SWITCHED,
    completed_on,
    let_go_by,
    once,
    spawned_on,
    taken_by,
)
from host_agent.shared.contract.messages import Verb

RESIZE = Flow(
    name="resize",
    volumes=TAKEN_ELSEWHERE,
    pivot="spawn",
    stages=(
        once(Place.SOURCE, Step("stop", Verb.GUEST_STOP, undo=Verb.GUEST_START)),
        taken_by(Place.DESTINATION),
        spawned_on(Place.DESTINATION),
        completed_on(Place.DESTINATION),
        Stage(
            Place.LEDGER,
            (Step("switch", LedgerVerb.MAPPING_SWITCH_KEEPING),),
            side=Side.NEW,
        ),
        once(Place.LEDGER, Step("resized", LedgerVerb.INSTANCE_RESIZED)),
    ),
)

_REMOVED = Step("remove", Verb.GUEST_REMOVE)
_SETTLED = once(Place.LEDGER, Step("settled", LedgerVerb.INSTANCE_SETTLED))

#: Current is the source's attachment, new the destination's.
CONFIRM_RESIZE = Flow(
    name="confirm_resize",
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        once(Place.SOURCE, _REMOVED),
        let_go_by(Place.SOURCE),
        SWITCHED,
        _SETTLED,
    ),
)

#: Current is the destination's attachment, new the one that the source has kept.
REVERT_RESIZE = Flow(
    name="revert_resize",
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        once(Place.DESTINATION, _REMOVED),
        let_go_by(Place.DESTINATION),
        SWITCHED,
        # With what it has kept, connected anew: it may have been restarted since.
        once(Place.SOURCE, Step("start", Verb.GUEST_START), side=Side.NEW),
        _SETTLED,
    ),
)
