"""What mends drift: one row for each repair, by its flow's name.

Pure.  A new one is a flow in `handlers/flows/`, and its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aggregates.attachment import AttachmentState
from handlers.drift import proofs, repair_lanes
from handlers.drift.proofs import Asked
from handlers.drift.repair_lanes import Case, refusal
from handlers.flows.repair import (
    COMPLETE_ATTACHMENT,
    DROP_ATTACHMENT,
    DROP_RESERVATION,
    FORGET_ATTACHMENT,
)
from handlers.flows.repair_correct import CORRECT_ATTACHMENT
from handlers.flows.repair_host import (
    DEFINE_DISK,
    DELETE_VOLUME,
    DROP_SECRET,
    FORGET_GUEST,
    PLUG_DISK,
    RELEASE_CONNECTION,
    SETTLE_VOLUME,
)
from handlers.flows.repair_replace import REPLACE_ATTACHMENT, REPLACE_RESERVATION
from handlers.flows.repair_server import FORGET_SERVER
from handlers.plan import Flow
from host_agent.shared.contract import Verb
from host_agent.shared.lane import Lane


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What mends a class of drift (`DriftClass.repair`).

    `lanes`: what it works on, for this case; the second argument is the id of no mapping.  `proof`:
    why the evidence does not allow it, in a sentence; None: it does.  `never`: what it does not do,
    for people.  `variant`: the flow that a case takes in its place.  `cannot`: why it can never
    work, by the finding's key and what it says.
    """

    flow: Flow
    lanes: Callable[[Case, str], list[Lane]]
    proof: Callable[[Asked], str | None]
    never: str
    variant: Callable[[Case], Flow] | None = None
    cannot: Callable[[str, Mapping[str, Any]], str | None] | None = None

    @property
    def asks_hosts(self) -> bool:
        """Whether its first step lets a host say what it has."""
        return self.flow.stages[0].steps[0].do is Verb.DRIFT_LOOK


def _bare(case: Case) -> Flow:
    if case.shown is None:
        raise refusal(case, "Cinder does not have the attachment any more.")
    bare = case.shown.status == "reserved" and not case.shown.connection_info
    return DROP_RESERVATION if bare else DROP_ATTACHMENT


def _reserved(case: Case) -> Flow:
    held = case.attachment
    reserved = held is not None and held.state is AttachmentState.RESERVED
    return REPLACE_RESERVATION if reserved else REPLACE_ATTACHMENT


_ROWS = (
    Repair(
        flow=DROP_RESERVATION,
        lanes=repair_lanes.of_attachment,
        proof=proofs.is_bare,
        never="An attachment that was given a connector is not deleted.",
    ),
    Repair(
        flow=DROP_ATTACHMENT,
        variant=_bare,
        lanes=repair_lanes.of_each_host,
        proof=proofs.is_unused,
        never="It is not deleted if any of these hosts shows it in a guest or a record, "
        "or is not sure.",
    ),
    Repair(
        flow=RELEASE_CONNECTION,
        lanes=repair_lanes.of_record,
        proof=proofs.guest_lets_it_go,
        never="Nothing is taken from a guest, no session is logged out, and the device "
        "stays if somebody else has the volume on that host.",
    ),
    Repair(
        flow=FORGET_ATTACHMENT,
        lanes=repair_lanes.of_mapping,
        proof=proofs.disk_is_gone,
        never="Nothing is taken from a guest, and nothing is deleted in Cinder.",
    ),
    Repair(
        flow=REPLACE_ATTACHMENT,
        variant=_reserved,
        lanes=repair_lanes.replaced,
        proof=proofs.disk_is_here,
        never="The guest keeps its disk. Cinder is not told that the volume is in use "
        "unless it is the very device of the guest; otherwise the operation parks.",
    ),
    Repair(
        flow=REPLACE_RESERVATION,
        lanes=repair_lanes.reserved_anew,
        proof=proofs.is_on_no_host,
        never="No host is asked for anything: the server is on none.",
    ),
    Repair(
        flow=COMPLETE_ATTACHMENT,
        lanes=repair_lanes.of_mapping,
        proof=proofs.is_taken_back,
        never="Cinder is not told that it is in use unless the guest has the disk.",
    ),
    Repair(
        flow=CORRECT_ATTACHMENT,
        lanes=repair_lanes.corrected,
        proof=proofs.is_only_here,
        never="Cinder is told nothing if another host shows the volume in a guest or a "
        "record, or is not sure. The guest keeps its disk, and nothing is deleted.",
    ),
    Repair(
        flow=SETTLE_VOLUME,
        lanes=repair_lanes.of_volume,
        proof=proofs.settles,
        cannot=proofs.found_unsettled,
        never="The state is not reset, for that would drop attachments under their hosts.",
    ),
    Repair(
        flow=DELETE_VOLUME,
        lanes=repair_lanes.of_volume,
        proof=proofs.is_ours_alone,
        never="It is not deleted unless the log shows that we made this very volume, or all "
        "that is known of it says so and no other volume can be the one; nor if Cinder has an "
        "attachment, a snapshot, a backup or a clone of it, or does not say.",
    ),
    Repair(
        flow=PLUG_DISK,
        lanes=repair_lanes.of_mapping,
        proof=proofs.guest_is_here,
        never="What the running guest has already is not changed.",
    ),
    Repair(
        flow=DEFINE_DISK,
        lanes=repair_lanes.of_mapping,
        proof=proofs.definition_can_follow,
        never="The running guest is not changed.",
    ),
    Repair(
        flow=DROP_SECRET,
        lanes=repair_lanes.of_volume_here,
        proof=proofs.not_on_the_host,
        never="It stays if the host has the volume in a guest or a record.",
    ),
    Repair(
        flow=FORGET_GUEST,
        lanes=repair_lanes.of_guest,
        proof=proofs.guest_is_here,
        never="What it has connected stays connected: that is a finding of its own.",
    ),
    Repair(
        flow=FORGET_SERVER,
        lanes=repair_lanes.of_server,
        proof=proofs.has_let_go,
        never="The server is kept if any of these hosts has its guest, a process of it, or "
        "anything in use of its volumes. No volume is deleted, whatever was to go with the server.",
    ),
)
#: By the name of its flow.
REPAIRS: dict[str, Repair] = {row.flow.name: row for row in _ROWS}
