"""Attach a volume to a server (S1, attach; S2 for roots; S3 for shared volumes).

The steps and their order are S1's.  Its rollback - disconnect by os-brick, then delete the
attachment in Cinder - is the undo column, read from the bottom.  A failure in the rollback parks
the operation and puts the server into ERROR, as S1 requires.  An offloaded server has no host: the
volume is only reserved for it.
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import NEW_TO_THE_SERVER
from host_agent.shared.contract.messages import Verb

_RESERVED = Stage(
    Place.LEDGER,
    (
        # S1, step 1: reserved, without connector, before the API answers ...
        Step("reserve", LedgerVerb.ATTACHMENT_RESERVE, undo=LedgerVerb.ATTACHMENT_DELETE),
        # ... and the mapping exists only with its attachment id.
        Step("bind", LedgerVerb.MAPPING_BIND, undo=LedgerVerb.MAPPING_UNBIND),
    ),
)

ATTACH = Flow(
    name="attach",
    volumes=NEW_TO_THE_SERVER,
    exclusive=False,
    stages=(
        _RESERVED,
        Stage(
            Place.HOST,
            (
                # Step 2: the host's connector; Cinder answers with how to connect.
                Step("update", Verb.ATTACHMENT_UPDATE, undo=Verb.ATTACHMENT_DELETE),
                # Step 3: not before the volume is provisioned; too late is a failure.
                Step("ready", Verb.VOLUME_WAIT_READY),
                # Step 4: a failed connect is disconnected too, it may have left something.
                Step("connect", Verb.VOLUME_CONNECT, undo=Verb.VOLUME_DISCONNECT),
                # Step 5: into the guest.
                Step("plug", Verb.DISK_PLUG, undo=Verb.DISK_UNPLUG),
                # Step 6: Cinder is told last; it would believe it without any evidence.
                Step("complete", Verb.ATTACHMENT_COMPLETE),
            ),
        ),
    ),
)

ATTACH_OFFLOADED = Flow(
    name="attach_offloaded", volumes=NEW_TO_THE_SERVER, exclusive=False, stages=(_RESERVED,)
)
