"""Give mappings new connections where the server is.

*Refresh* is what `nova-manage volume_attachment refresh` wants to be: the storage's
portals or monitors have changed.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Stage, Step
from handlers.engine.volumes import CONNECTED_ANEW
from handlers.flows.stages import NO_WAY_BACK
from host_agent.shared.contract.messages import Verb

#: Cinder is given the host's connector for the same attachment.
REFRESHED = (
    Step("refresh", Verb.ATTACHMENT_REFRESH),
    Step("connect", Verb.VOLUME_CONNECT),
    # Before the disk is changed, which a guest that runs may have to refuse:
    # it has the volume all the same, and Cinder should not wait to hear it.
    Step("complete", Verb.ATTACHMENT_COMPLETE),
    Step("replace", Verb.DISK_REPLACE),
)

REFRESH = Flow(
    name="refresh",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    asks=Ask.GUEST,  # Cinder is told who has it
    stages=(NO_WAY_BACK, Stage(Place.HOST, REFRESHED)),
)
