"""Move a running guest to another host (S1, live-migrate).

During the move both hosts have an attachment of their own.  A failure before the guest has moved is
undone on the destination.  If the source cannot disconnect afterwards, instance and migration end
in ERROR, and its attachment stays in Cinder, so that an operator looks at it (S1; LP 1843639).
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Side, Step
from handlers.engine.volumes import TAKEN_ELSEWHERE
from handlers.flows.stages import SWITCHED, completed_on, let_go_by, once, taken_by
from host_agent.shared.contract.messages import Verb

LIVE_MIGRATE = Flow(
    name="live_migrate",
    volumes=TAKEN_ELSEWHERE,
    pivot="migrate",
    stages=(
        taken_by(Place.DESTINATION),
        # The undo ends a migration under way; or finds that the guest has moved.
        once(
            Place.SOURCE,
            Step("migrate", Verb.GUEST_MIGRATE, undo=Verb.GUEST_STAY),
            side=Side.NEW,
        ),
        completed_on(Place.DESTINATION),
        SWITCHED,
        let_go_by(Place.SOURCE),
    ),
)
