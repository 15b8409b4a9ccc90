"""Start, stop, pause and rebuild a guest, as far as its volumes are concerned (S1).

Before it starts, each volume is connected with what Cinder says of its attachment *now*,
never with what was true the last time (LP 1724573, LP 1741364).
"""

from __future__ import annotations

from handlers.flows.stages import NO_WAY_BACK, once
from handlers.plan import Flow, Place, Stage, Step
from host_agent.contract import Verb

_CONNECTED = Stage(Place.HOST, (Step("connect", Verb.VOLUME_CONNECT),))
_STOPPED = once(Place.HOST, Step("stop", Verb.GUEST_STOP))
_SPAWNED = once(Place.HOST, Step("spawn", Verb.GUEST_SPAWN))

START = Flow(
    name="start",
    stages=(_CONNECTED, once(Place.HOST, Step("spawn", Verb.GUEST_SPAWN, undo=Verb.GUEST_STOP))),
)
STOP = Flow(name="stop", stages=(_STOPPED,))
PAUSE = Flow(name="pause", stages=(once(Place.HOST, Step("pause", Verb.GUEST_PAUSE)),))
UNPAUSE = Flow(name="unpause", stages=(once(Place.HOST, Step("resume", Verb.GUEST_RESUME)),))

_ANEW = (NO_WAY_BACK, _STOPPED, _CONNECTED, _SPAWNED)
REBOOT = Flow(name="reboot", pivot="begin", stages=_ANEW)
REBUILD = Flow(name="rebuild", pivot="begin", stages=_ANEW)
