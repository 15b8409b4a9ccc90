"""Repair an attachment that Cinder has lost, and the server still has (decision 0059).

The guest keeps its disk, and gets a new attachment.  From the reservation on there is only forward,
for deleting an attachment with a connector would take the disk from the guest.  While Cinder knew
of nobody its storage may have given the device to somebody else: that is made sure of before Cinder
is told that the volume is in use.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows.repair import LOOKED_HERE, RECHECK
from handlers.flows.stages import RESERVED, SWITCHED
from host_agent.shared.contract.messages import Verb

_FORGOTTEN = Stage(Place.LEDGER, (Step("forget", LedgerVerb.ATTACHMENT_FORGET),))

REPLACE_ATTACHMENT = Flow(
    name="replace_attachment",
    exclusive=False,
    asks=Ask.NOTHING,
    pivot="reserve",
    stages=(
        *LOOKED_HERE,
        RESERVED,
        Stage(
            Place.HOST,
            (
                Step("update", Verb.ATTACHMENT_UPDATE),
                Step("connect", Verb.VOLUME_CONNECT),
                Step("verify", Verb.DISK_VERIFY),
                Step("complete", Verb.ATTACHMENT_COMPLETE),
            ),
            side=Side.NEW,
        ),
        SWITCHED,
        # Only the record of the former one goes: the connection is the new one's now.
        Stage(Place.HOST, (Step("release", Verb.CONNECTION_RELEASE),)),
        _FORGOTTEN,
    ),
)

#: Of a server that is on no host: its volume is reserved for it again.
REPLACE_RESERVATION = Flow(
    name="replace_reservation",
    exclusive=False,
    asks=Ask.NOTHING,
    stages=(RECHECK, RESERVED, SWITCHED, _FORGOTTEN),
)
