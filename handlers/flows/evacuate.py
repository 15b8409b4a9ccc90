"""Rebuild a server of a dead host on another one (S1, evacuate).

"It is assumed the administrator has already fenced the host": here that is demanded.  The
fence is the evidence by which the guest is started elsewhere: it has to stand, and to be
newer than the guest's arrival, until then (`trusts`).  By it the ledger gives up the source's
attachment, only after the destination has its own: the volume is the server's all the time.
A source that comes back clears what it still has before it is given any work (decision 0027).
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place
from handlers.engine.volumes import TAKEN_ELSEWHERE
from handlers.flows.stages import SWITCHED, completed_on, let_go_by, spawned_on, taken_by

EVACUATE = Flow(
    name="evacuate",
    volumes=TAKEN_ELSEWHERE,
    pivot="spawn",
    trusts=Place.SOURCE,
    stages=(
        taken_by(Place.DESTINATION),
        spawned_on(Place.DESTINATION),
        completed_on(Place.DESTINATION),
        SWITCHED,
        let_go_by(Place.SOURCE),
    ),
)
