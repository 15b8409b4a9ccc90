"""In which states of its volumes in Cinder a flow is accepted: data, and one pure check.

The rules follow what the flow will ask of Cinder, and what Cinder does then (29.0.0,
cinder/volume/api.py):

* POST /attachments (`_attachment_reserve`) takes a volume that is available or downloading; one
  that is in-use or reserved, if it is multi-attach or this server has it already (LP 1694530),
  which Cinder tells best; and none in an error;
* PUT /attachments/{id} refuses a volume in an error;
* DELETE /attachments/{id} refuses nothing, and harms a volume that Cinder works on
  (host_agent.shared.contract.volume_states), so we refuse, as os-begin_detaching would;
* a connection that is there is used, or given up beside another one, without asking for anything
  that a volume's state could forbid: an error of the volume keeps no server from starting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aggregates import errors
from host_agent.shared.contract.ports import VolumeView
from host_agent.shared.contract.volume_states import FAILED, OF_ATTACHMENTS, is_migrating, state_of


@dataclass(frozen=True)
class VolumeRule:
    """`migrating`: whether Cinder may be moving the volume to another backend now."""

    statuses: frozenset[str]
    migrating: bool = False


#: The server is to have the volume, and does not yet.  Which of these Cinder then takes depends
#: on its attachments; it says so before anything else is done.
NEW_TO_THE_SERVER = VolumeRule(frozenset({"available", "downloading", "reserved", "in-use"}))
#: The server has it, and loses its last attachment.
LET_GO = VolumeRule(OF_ATTACHMENTS | FAILED)
#: The server has it, and gets another attachment first.  A migration of Cinder's is not harmed:
#: the swap that it asks for is refused as long as the server is claimed.
TAKEN_NOWHERE = VolumeRule(frozenset({"available", "reserved", "in-use"}), migrating=True)
#: The same on a host, which first completes what a late request has taken back (0034).
TAKEN_ELSEWHERE = VolumeRule(TAKEN_NOWHERE.statuses | {"attaching"}, migrating=True)
#: The attachment that it has is connected anew.
CONNECTED_ANEW = VolumeRule(OF_ATTACHMENTS)
#: The root gets an image: nova-api wants the volumes of its server in use.  Of one whose image has
#: failed before, and that an administrator has reset, the server has a bare attachment.
REIMAGED = VolumeRule(frozenset({"in-use", "reserved"}))
#: Cinder asks for the swap itself, and waits for it.
COPIED_FOR_CINDER = VolumeRule(OF_ATTACHMENTS | {"retyping"}, migrating=True)
#: Cinder extends it in use, and waits for its guest.
EXTENDED_FOR_CINDER = VolumeRule(frozenset({"extending"}))

_AT_WORK = (
    "wait until Cinder has finished with it; if it never does, an administrator resets its state "
    "(os-reset_status)"
)
_IN_ERROR = "see its messages in Cinder; an administrator resets its state when it is sound"
#: What to do about a status; _AT_WORK for all others.
_ADVICE = {
    **dict.fromkeys(FAILED, _IN_ERROR),
    "awaiting-transfer": "accept or delete its transfer",
    "maintenance": "an administrator ends its maintenance",
    "deleting": "use another volume",
}


def check(
    rule: VolumeRule,
    volumes: Iterable[VolumeView | None],
    refusal: type[errors.VolumeStateError],
) -> None:
    """Raise the error for the first volume whose state the rule does not accept.

    None stands for a volume that Cinder no longer has: it is ignored.
    """
    for volume in volumes:
        if volume is not None and not _accepted(rule, volume):
            advice = _ADVICE.get(volume.status, _AT_WORK)
            raise refusal(volume_id=volume.id, state=state_of(volume), advice=advice)


def _accepted(rule: VolumeRule, volume: VolumeView) -> bool:
    return volume.status in rule.statuses and (rule.migrating or not is_migrating(volume))
