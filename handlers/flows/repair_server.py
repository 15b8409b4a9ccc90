"""Forget a server whose guest has vanished (decision 0071).

Every host that may ever have had it is asked, and has to say that neither the guest nor a process
of it is there, and that nobody else has a volume of it there.  Then it is as with a deletion, with
two differences: no guest is removed, and no volume goes with its server.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows.repair import RECHECK, looked_on
from handlers.flows.stages import once
from host_agent.shared.contract.messages import Verb

FORGET_SERVER = Flow(
    name="forget_server",
    pivot="forget",
    stages=(
        looked_on(Place.HOLDER),
        RECHECK,
        # All of them have agreed.
        once(Place.LEDGER, Step("forget", LedgerVerb.INSTANCE_DELETE)),
        # By the host's own record, which refuses while anybody there has the disk.
        Stage(Place.HOLDER, (Step("release", Verb.CONNECTION_RELEASE),)),
        Stage(
            Place.LEDGER,
            (
                Step("unplugged", LedgerVerb.DISK_WAIVE),
                Step("delete", LedgerVerb.ATTACHMENT_DELETE),
                Step("unbind", LedgerVerb.MAPPING_UNBIND),
            ),
        ),
        once(Place.LEDGER, Step("clear", LedgerVerb.ATTACHMENTS_CLEAR)),
    ),
)
