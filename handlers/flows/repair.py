"""Repairs of drift (decision 0059), of attachments; `handlers.drift.repairs` has the row of each.

Every repair looks again first: the hosts that could have the subject report what they have
(`look`), and the ledger decides from that, from Cinder and from its log whether the finding still
holds (`again`).  If not, it changes nothing.  A step that removes something checks its own place
once more.  No repair detaches from a guest, and none deletes an attachment that a host may use
(CVE-2023-2088).

Mostly one step changes something, so a failure leaves either all or nothing.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows.stages import once
from host_agent.shared.contract.messages import Verb


def looked_on(place: Place) -> Stage:
    """A repair asks a host what it has now."""
    return Stage(place, (Step("look", Verb.DRIFT_LOOK),))


#: By what was shown, by Cinder and by the log the finding still holds; else nothing is done.
RECHECK = Stage(Place.LEDGER, (Step("again", LedgerVerb.DRIFT_AGAIN),))
LOOKED_HERE = (looked_on(Place.HOST), RECHECK)

_DROPPED = Stage(
    Place.LEDGER,
    # What is not deleted after all is not left `detaching` (LP 880399).
    (Step("drop", LedgerVerb.ATTACHMENT_DROP, undo=LedgerVerb.VOLUME_SETTLE),),
)

#: A bare reservation: Cinder has never been given a connector, so no host can have connected by it.
DROP_RESERVATION = Flow(name="drop_reservation", exclusive=False, stages=(RECHECK, _DROPPED))

#: One lane for each host that could have it: all of them have to show that they do not.
DROP_ATTACHMENT = Flow(
    name="drop_attachment",
    exclusive=False,
    stages=(
        looked_on(Place.HOLDER),
        RECHECK,
        once(Place.LEDGER, Step("all_agree", LedgerVerb.CHECKPOINT)),
        _DROPPED,
    ),
)

#: Neither Cinder nor the guest has it: the host lets go by its record, then the ledger forgets.
FORGET_ATTACHMENT = Flow(
    name="forget_attachment",
    exclusive=False,
    stages=(
        *LOOKED_HERE,
        Stage(Place.HOST, (Step("release", Verb.CONNECTION_RELEASE),)),
        Stage(
            Place.LEDGER,
            (
                Step("unplugged", LedgerVerb.DISK_WAIVE),
                Step("forget", LedgerVerb.ATTACHMENT_FORGET),
                Step("unbind", LedgerVerb.MAPPING_UNBIND),
            ),
        ),
    ),
)

COMPLETE_ATTACHMENT = Flow(
    name="complete_attachment",
    exclusive=False,
    asks=Ask.NOTHING,
    stages=(*LOOKED_HERE, Stage(Place.HOST, (Step("complete", Verb.ATTACHMENT_COMPLETE),))),
)
