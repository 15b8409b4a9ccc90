"""An operation's claims on its volumes, from its plan.

Rule (decision 0042): at most one operation works on a volume for a server; at most one creates an
attachment of it; and on each host either one operation makes a new connection of it, or any number
disconnect it.  The decision about the last user rests on this third rule (decision 0014): an agent
that disconnects asks who else has the volume connected on its host, and the ledger answers from the
attachments that are connected by the log.  Two that disconnect may ask in any order, and crash at
any point: each counts as a user until its own disconnect is in the log, so the last one
disconnects.  One that connects counts only from its report on, which may come after the connection.

A connection is new if its step has an undo that disconnects.  Without one (a reboot, a refresh) the
attachment was connected there before, and counts.  After a failure a step with such an undo is only
undone; so a parked operation makes no new connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handlers.engine.plan import Flow, Place, Plan, Side, Stage, Step
from handlers.engine.verbs import VERBS
from host_agent.shared.contract.messages import Verb


def leaves_disks(flow: Flow) -> bool:
    """Whether the server keeps the disks of its volumes at every point of the flow."""
    steps = (step for stage in flow.stages for step in stage.steps)
    return all(VERBS[verb].keeps_disks for s in steps for verb in (s.do, s.undo) if verb)


def on_volume(plan: Plan, volume_id: str) -> dict[str, Any]:
    """The claim of a plan on one of its volumes, for Volume.claim."""
    hosts, takes, reserves = set(), set(), False
    for host, stage in _stages(plan, volume_id):
        reserves |= any(VERBS[step.do].reserves for step in stage.steps)
        if host is not None and not all(VERBS[step.do].keeps_connections for step in stage.steps):
            hosts.add(host)
            if any(connects_anew(step) for step in stage.steps):
                takes.add(host)
    shared = all(lane.multiattach for lane in plan.lanes if volume_id in lane.volume_ids)
    return {"shared": shared, "reserves": reserves, "takes": takes, "hosts": hosts}


def connects_anew(step: Step) -> bool:
    """Whether the step makes a new connection."""
    return step.do is Verb.VOLUME_CONNECT and step.undo is Verb.VOLUME_DISCONNECT


def _stages(plan: Plan, volume_id: str) -> Iterator[tuple[str | None, Stage]]:
    """The stages of the volume's lanes, each with its host (None: the ledger)."""
    for number, lane in enumerate(plan.lanes):
        for stage in plan.stages:
            new = stage.side is Side.NEW
            if number in plan.lanes_of(stage) and lane.volume_of(new=new) == volume_id:
                place = stage.place
                host = None if place is Place.LEDGER else plan.host_of(number, place)
                yield host, stage
