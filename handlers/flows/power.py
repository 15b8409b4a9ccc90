"""Start, stop, pause and rebuild a guest, as far as its volumes are concerned (S1).

Before it starts, each volume is connected with what Cinder says of its attachment *now*,
never with what was true the last time (LP 1724573, LP 1741364).  What is no guest's disk may never
have been connected by the attachment that it has (a reimage that was cut off, decision 0083): that
gets the host's connector first, and Cinder is told when the guest has it.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Only, Place, Stage, Step
from handlers.engine.volumes import CONNECTED_ANEW
from handlers.flows.stages import once
from host_agent.shared.contract.messages import Verb

_CONNECTED = (
    Stage(
        Place.HOST,
        (Step("ready", Verb.VOLUME_WAIT_READY), Step("update", Verb.ATTACHMENT_UPDATE)),
        only=Only.NOT_IN_GUEST,
    ),
    Stage(Place.HOST, (Step("connect", Verb.VOLUME_CONNECT),)),
)
_COMPLETED = Stage(
    Place.HOST, (Step("complete", Verb.ATTACHMENT_COMPLETE),), only=Only.NOT_IN_GUEST
)
_SPAWNED = once(Place.HOST, Step("spawn", Verb.GUEST_SPAWN))

_STOPPED = once(Place.HOST, Step("stop", Verb.GUEST_STOP, undo=Verb.GUEST_START))

START = Flow(
    name="start",
    claims_volumes=False,
    stages=(
        *_CONNECTED,
        once(Place.HOST, Step("spawn", Verb.GUEST_SPAWN, undo=Verb.GUEST_STOP)),
        _COMPLETED,
    ),
)
STOP = Flow(name="stop", claims_volumes=False, asks=Ask.GUEST, stages=(_STOPPED,))
PAUSE = Flow(
    name="pause",
    claims_volumes=False,
    asks=Ask.GUEST,
    stages=(once(Place.HOST, Step("pause", Verb.GUEST_PAUSE, undo=Verb.GUEST_RESUME)),),
)
UNPAUSE = Flow(
    name="unpause",
    claims_volumes=False,
    stages=(once(Place.HOST, Step("resume", Verb.GUEST_RESUME, undo=Verb.GUEST_PAUSE)),),
)

#: Connected first, under the running guest: what cannot be had again costs nobody a guest.
_ANEW = (*_CONNECTED, _STOPPED, _SPAWNED, _COMPLETED)
REBOOT = Flow(name="reboot", pivot="stop", claims_volumes=False, stages=_ANEW)
REBUILD = Flow(name="rebuild", volumes=CONNECTED_ANEW, pivot="stop", stages=_ANEW)
