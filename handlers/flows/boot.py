"""Build a server with its volumes attached before it starts (S1's first use case, S3).

If the host part fails, all of it is undone and the server is in ERROR; its volumes stay
reserved for it until it is deleted, so that nobody else takes them (LP 1899649).
Volumes that the service creates itself are never multi-attach (S3).
"""

from __future__ import annotations

from handlers.engine.plan import Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.engine.volumes import NEW_TO_THE_SERVER
from handlers.flows.stages import (
    RESERVATION_DROPPED,
    SWITCHED,
    completed_on,
    once,
    spawned_on,
    taken_by,
)

BOOT = Flow(
    name="boot",
    volumes=NEW_TO_THE_SERVER,
    pivot="spawn",
    stages=(
        # S1: "if this is the first boot", a failure means ERROR.
        once(Place.LEDGER, Step("build", LedgerVerb.CHECKPOINT, undo=LedgerVerb.INSTANCE_FAIL)),
        Stage(
            Place.LEDGER,
            (
                # Its mark in Cinder, the mapping's id, is in the log before: so it has an owner
                # from before it exists.  One that a mapping has goes with its server.
                Step("make", LedgerVerb.VOLUME_CREATE, undo=LedgerVerb.VOLUME_UNMAKE),
                Step("made", LedgerVerb.VOLUME_AWAIT),
                Step("reserve", LedgerVerb.ATTACHMENT_RESERVE, undo=LedgerVerb.RESERVATION_TIDY),
                Step("bind", LedgerVerb.MAPPING_BIND),
            ),
        ),
        taken_by(Place.HOST),
        spawned_on(Place.HOST),
        completed_on(Place.HOST),
        SWITCHED,
        RESERVATION_DROPPED,
    ),
)
