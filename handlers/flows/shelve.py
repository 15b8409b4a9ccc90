"""Take a server off its host, its volumes still its own, and bring it back (S1).

"When offloading from an old host, we first add a new attachment (with no connector
set) then perform a disconnect of the old attachment in the usual way."
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import TAKEN_ELSEWHERE, TAKEN_NOWHERE
from handlers.flows.stages import (
    RESERVATION_DROPPED,
    RESERVED,
    SWITCHED,
    completed_on,
    let_go_by,
    once,
    spawned_on,
    taken_by,
)
from host_agent.shared.contract.messages import Verb

SHELVE = Flow(
    name="shelve",
    volumes=TAKEN_NOWHERE,
    pivot="remove",
    stages=(
        once(Place.HOST, Step("stop", Verb.GUEST_STOP, undo=Verb.GUEST_START)),
        RESERVED,
        once(Place.HOST, Step("remove", Verb.GUEST_REMOVE, undo=Verb.GUEST_SPAWN)),
        # Should that fail, the server is in ERROR, and the attachment stays (S1).
        let_go_by(Place.HOST),
        SWITCHED,
        once(Place.LEDGER, Step("offload", LedgerVerb.INSTANCE_OFFLOAD)),
    ),
)

UNSHELVE = Flow(
    name="unshelve",
    volumes=TAKEN_ELSEWHERE,
    pivot="spawn",
    stages=(
        taken_by(Place.DESTINATION),
        spawned_on(Place.DESTINATION),
        completed_on(Place.DESTINATION),
        SWITCHED,
        RESERVATION_DROPPED,
    ),
)
