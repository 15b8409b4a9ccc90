"""Delete a server and release everything it has, wherever that is.

From the first step on the server is in no list, and only GET of it is answered: `deleting`, until
all is released or the operation parks, for clients take 404 as a sign that the volumes are free.
The release goes on however long Cinder or a host is away (LP 1563547).  There is one lane for each
attachment, with the host that holds it: a host that is down keeps its attachments until it is back,
or fenced.  One lane that cannot go on does not stop the others.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows.stages import once
from host_agent.shared.contract.messages import Verb

DELETE = Flow(
    name="delete",
    pivot="forget",
    patient=True,
    stages=(
        once(Place.LEDGER, Step("forget", LedgerVerb.INSTANCE_DELETE)),
        once(Place.HOST, Step("remove", Verb.GUEST_REMOVE)),
        # What a resize that nobody confirmed has left there,
        once(Place.SOURCE, Step("remove_former", Verb.GUEST_REMOVE)),
        # where a move that did not come to its end may have brought it,
        once(Place.DESTINATION, Step("remove_other", Verb.GUEST_REMOVE)),
        # and where it may have come until just now, when it was removed from its host.
        once(Place.ARRIVAL, Step("remove_arrived", Verb.GUEST_REMOVE)),
        Stage(
            Place.HOLDER,
            (
                Step("disconnect", Verb.VOLUME_DISCONNECT),
                Step("delete", Verb.ATTACHMENT_DELETE),
            ),
        ),
        Stage(
            Place.LEDGER,
            (
                Step("unbind", LedgerVerb.MAPPING_UNBIND),
                # delete_on_termination; what Cinder refuses is noted, not fatal (S3).
                Step("volume", LedgerVerb.VOLUME_DELETE),
            ),
        ),
        # What requests have left in Cinder that nobody waited for, of any volume.
        once(Place.LEDGER, Step("clear", LedgerVerb.ATTACHMENTS_CLEAR)),
    ),
)
