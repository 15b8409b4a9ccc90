"""Correct what Cinder has wrong of an attachment that is in use (decision 0085).

Which host has it, and how its disk is called, Cinder takes from the connector that it was given
last.  So it is a refresh, once every host that could have the volume has shown that only this one
has: Cinder forgets the connector that it was given before, and with it how to end that connection.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage
from handlers.engine.volumes import CONNECTED_ANEW
from handlers.flows.refresh import REFRESHED
from handlers.flows.repair import RECHECK, looked_on
from handlers.flows.stages import NO_WAY_BACK

CORRECT_ATTACHMENT = Flow(
    name="correct_attachment",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    stages=(
        looked_on(Place.HOLDER),
        RECHECK,
        NO_WAY_BACK,  # all of them have agreed
        Stage(Place.HOST, REFRESHED, of=Place.HOST),
    ),
)
