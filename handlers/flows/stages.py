"""Stages that several flows share.

How volumes move: whoever is to have a volume gets an attachment of its own, made with
its connector; whoever had it keeps its attachment until the new one is complete, and
loses it after it has proven its disconnect.  So a volume is never `available` in between,
and going back is to delete what is new.  (S1 updates the existing attachment on unshelve;
real Cinder has no way back from that, and refuses an update while another is connected.)
"""

from __future__ import annotations

from handlers.engine.plan import Place, Side, Stage, Step
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.messages import Verb

#: A second attachment holds the volume; no host has it yet.
RESERVED = Stage(
    Place.LEDGER,
    (Step("reserve", LedgerVerb.ATTACHMENT_RESERVE, undo=LedgerVerb.ATTACHMENT_DELETE),),
    side=Side.NEW,
)


def taken_by(place: Place) -> Stage:
    """A host gets its own attachment to each volume, and connects it (S1)."""
    return Stage(
        place,
        (
            Step("create", Verb.ATTACHMENT_CREATE, undo=Verb.ATTACHMENT_DELETE),
            # S1: not before the volume is provisioned; too late is a failure.
            Step("ready", Verb.VOLUME_WAIT_READY),
            # A failed connect is disconnected too, it may have left something.
            Step("connect", Verb.VOLUME_CONNECT, undo=Verb.VOLUME_DISCONNECT),
        ),
        side=Side.NEW,
    )


def spawned_on(place: Place) -> Stage:
    """The guest is defined there with the volumes as that host sees them, and started."""
    spawn = Step("spawn", Verb.GUEST_SPAWN, undo=Verb.GUEST_REMOVE)
    return Stage(place, (spawn,), side=Side.NEW, once=True)


def completed_on(place: Place) -> Stage:
    """Cinder is told last: it would believe it without any evidence."""
    return Stage(place, (Step("complete", Verb.ATTACHMENT_COMPLETE),), side=Side.NEW)


#: From now on the server has its volumes through the new attachments.
SWITCHED = Stage(Place.LEDGER, (Step("switch", LedgerVerb.MAPPING_SWITCH),), side=Side.NEW)


def let_go_by(place: Place) -> Stage:
    """The former attachment; kept, with a fault, if its host cannot disconnect (S1)."""
    return Stage(
        place,
        (
            Step("disconnect", Verb.VOLUME_DISCONNECT),
            Step("delete", Verb.ATTACHMENT_DELETE),
        ),
    )


#: The former attachment was only a reservation.
RESERVATION_DROPPED = Stage(Place.LEDGER, (Step("drop", LedgerVerb.ATTACHMENT_DELETE),))

#: A pivot that is passed at once: from here on there is only forward, or PARK.
NO_WAY_BACK = Stage(Place.LEDGER, (Step("begin", LedgerVerb.CHECKPOINT),), once=True)


def once(place: Place, *steps: Step, side: Side = Side.CURRENT) -> Stage:
    """Steps for the whole server."""
    return Stage(place, steps, side=side, once=True)
