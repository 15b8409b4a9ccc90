"""Put an image into the root volume of a server (Nova's rebuild from 2.93 on, decision 0083).

Cinder writes to a volume that is reserved by one attachment, and no host may have it meanwhile.  So
a bare attachment holds the volume, the former one is let go of as in a detach, and the volume comes
back by the bare one as in an attach.  Once the guest has lost its disk there is only forward: what
Cinder writes cannot be had back.
"""

from __future__ import annotations

from dataclasses import replace

from handlers.engine.plan import Flow, Only, Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import REIMAGED
from handlers.flows.stages import RESERVED, SWITCHED, once
from host_agent.shared.contract.messages import Verb

REIMAGE = Flow(
    name="reimage",
    volumes=REIMAGED,
    pivot="unplug",
    stages=(
        once(Place.HOST, Step("stop", Verb.GUEST_STOP, undo=Verb.GUEST_START)),
        replace(RESERVED, only=Only.IMAGED),
        Stage(
            Place.HOST,
            (
                Step("unplug", Verb.DISK_UNPLUG, undo=Verb.DISK_PLUG),
                Step("disconnect", Verb.VOLUME_DISCONNECT),
                Step("delete", Verb.ATTACHMENT_DELETE),
            ),
            only=Only.IMAGED,
        ),
        # Before anything is written: whatever happens to that, the server has this attachment.
        replace(SWITCHED, only=Only.IMAGED),
        Stage(
            Place.LEDGER,
            (Step("reimage", LedgerVerb.VOLUME_REIMAGE),),
            side=Side.NEW,
            only=Only.IMAGED,
        ),
        Stage(
            Place.HOST,
            (
                Step("update", Verb.ATTACHMENT_UPDATE),
                Step("ready", Verb.VOLUME_WAIT_READY),
                Step("connect", Verb.VOLUME_CONNECT),
                Step("plug", Verb.DISK_PLUG),
                Step("complete", Verb.ATTACHMENT_COMPLETE),
            ),
            side=Side.NEW,
            only=Only.IMAGED,
        ),
        once(Place.HOST, Step("start", Verb.GUEST_START), side=Side.NEW),
    ),
)
