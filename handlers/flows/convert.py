"""Give mappings of Cinder's old calls attachments of the new ones (S1, "migrate old BDMs").

The guest does not notice.  Of a server that is offloaded it is a bare reservation then, as shelve
would have made it.

Of a server that is resized both hosts have the volume, and Cinder has one row by the old calls.
It becomes the attachment of the host that the server is on; then the source, where no guest runs,
makes one of its own.  The order is Cinder's: while another attachment is connected it gives no
connector to one that is there (`attachment_update`), and takes a new one with its connector.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import CONNECTED_ANEW
from handlers.flows.stages import NO_WAY_BACK, SWITCHED
from host_agent.shared.contract.messages import Verb

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

_REPLACED = LedgerVerb.MAPPING_REPLACE

#: A lane for each host of each volume: what the server has, and what the source has kept.
CONVERT_RESIZED = Flow(
    name="convert_resized",
    volumes=CONNECTED_ANEW,
    pivot="begin",
    stages=(
        NO_WAY_BACK,
        Stage(
            Place.DESTINATION,
            (Step("convert", Verb.ATTACHMENT_CONVERT),),
            side=Side.NEW,
            of=Place.DESTINATION,
        ),
        Stage(Place.LEDGER, (Step("switch", _REPLACED),), side=Side.NEW, of=Place.DESTINATION),
        Stage(
            Place.SOURCE,
            (
                Step("create", Verb.ATTACHMENT_CREATE),
                Step("connect", Verb.VOLUME_CONNECT),
                Step("complete", Verb.ATTACHMENT_COMPLETE),
            ),
            side=Side.NEW,
            of=Place.SOURCE,
        ),
        Stage(Place.LEDGER, (Step("keep", _REPLACED),), side=Side.NEW, of=Place.SOURCE),
        # Only the record of the former one goes: the connection is the new one's now.
        Stage(Place.SOURCE, (Step("release", Verb.CONNECTION_RELEASE),), of=Place.SOURCE),
        Stage(Place.LEDGER, (Step("forget", LedgerVerb.ATTACHMENT_FORGET),), of=Place.SOURCE),
    ),
)
