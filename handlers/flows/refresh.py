"""Give mappings new connections, or a new kind of attachment, where the server is.

*Refresh* is what `nova-manage volume_attachment refresh` wants to be: the storage's
portals or monitors have changed.  *Convert* makes a mapping of Cinder's old calls one of
the new ones (S1, "migrate old BDMs"), and its guest does not notice.  Of a server that is
offloaded it is a bare reservation then, as shelve would have made it.
"""

from __future__ import annotations

from handlers.flows.stages import NO_WAY_BACK, SWITCHED
from handlers.plan import Flow, LedgerVerb, Place, Side, Stage, Step
from handlers.volumes import CONNECTED_ANEW
from host_agent.shared.contract import Verb

REFRESH = Flow(
    name="refresh",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        Stage(
            Place.HOST,
            (
                Step("refresh", Verb.ATTACHMENT_REFRESH),
                Step("connect", Verb.VOLUME_CONNECT),
                # Before the disk is changed, which a guest that runs may have to refuse:
                # it has the volume all the same, and Cinder should not wait to hear it.
                Step("complete", Verb.ATTACHMENT_COMPLETE),
                Step("replace", Verb.DISK_REPLACE),
            ),
        ),
    ),
)

CONVERT = Flow(
    name="convert",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        Stage(Place.HOST, (Step("convert", Verb.ATTACHMENT_CONVERT),), side=Side.NEW),
        SWITCHED,
    ),
)

CONVERT_OFFLOADED = Flow(
    name="convert_offloaded",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        Stage(Place.LEDGER, (Step("convert", LedgerVerb.RESERVATION_CONVERT),), side=Side.NEW),
        SWITCHED,
    ),
)
