"""Repairs of what a host has, or lacks, and of volumes (decision 0059).

What is left on a host goes by that host's own records; what a guest lacks it gets, as its mapping
has it; where the guest and its definition both have a disk and differ, the running guest is right.
A volume's status is settled by Cinder's own calls, never by a reset, which would drop attachments
under their hosts.
"""

from __future__ import annotations

from handlers.engine.plan import Ask, Flow, Place, Stage, Step
from handlers.engine.verbs import LedgerVerb
from handlers.flows.repair import LOOKED_HERE, RECHECK
from handlers.flows.stages import once
from host_agent.shared.contract.messages import Verb


def _on_host(name: str, step: Step, asks: Ask = Ask.NOTHING) -> Flow:
    stages = (*LOOKED_HERE, Stage(Place.HOST, (step,)))
    return Flow(name=name, exclusive=False, asks=asks, stages=stages)


RELEASE_CONNECTION = _on_host("release_connection", Step("release", Verb.CONNECTION_RELEASE))
# A plug that fails leaves the disk where it was before, or, half done, where it is to be.
PLUG_DISK = _on_host("plug_disk", Step("plug", Verb.DISK_PLUG), asks=Ask.VOLUMES)
DEFINE_DISK = _on_host("define_disk", Step("define", Verb.DISK_PLUG))
DROP_SECRET = _on_host("drop_secret", Step("drop", Verb.SECRET_DROP))

#: The server is deleted; its guest is powered off and undefined.
FORGET_GUEST = Flow(
    name="forget_guest",
    asks=Ask.NOTHING,
    stages=(*LOOKED_HERE, once(Place.HOST, Step("remove", Verb.GUEST_REMOVE))),
)

SETTLE_VOLUME = Flow(
    name="settle_volume",
    exclusive=False,
    stages=(RECHECK, Stage(Place.LEDGER, (Step("settle", LedgerVerb.VOLUME_SETTLE),))),
)

DELETE_VOLUME = Flow(
    name="delete_volume",
    exclusive=False,
    stages=(RECHECK, Stage(Place.LEDGER, (Step("delete", LedgerVerb.VOLUME_DROP),))),
)
