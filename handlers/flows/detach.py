"""Detach a volume from a server, wherever that is (S1, detach; S2 for roots).

S1 does not list begin_detaching.  It is part of the deletion, and taken back if that fails, so
nothing is left in `detaching` (decision 0040, LP 880399).  An offloaded server's volume is
only reserved: with no host to do the first three steps, the ledger deletes the reservation
(LP 1808089).
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import LET_GO
from host_agent.shared.contract.messages import Verb

DETACH = Flow(
    name="detach",
    volumes=LET_GO,
    pivot="unplug",
    exclusive=False,
    stages=(
        Stage(
            Place.HOST,
            (
                # A guest that keeps the disk stops the request; the undo makes sure that
                # the disk is then where it was, running and defined alike.
                Step("unplug", Verb.DISK_UNPLUG, undo=Verb.DISK_PLUG),
                # From here a failure is the operator's: fault, ERROR, attachment kept.
                Step("disconnect", Verb.VOLUME_DISCONNECT),
                # Only what is proven to be off the host is given back to Cinder.
                Step("delete", Verb.ATTACHMENT_DELETE),
            ),
        ),
        Stage(Place.LEDGER, (Step("unbind", LedgerVerb.MAPPING_UNBIND),)),
    ),
)
