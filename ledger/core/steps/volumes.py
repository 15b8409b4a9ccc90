"""Volumes: created for the disks of new servers, awaited, removed; deleted, moved and extended.

The owner of a volume is in the log before the volume exists: its mark in Cinder is the mapping's
id.  The mark finds what a lost answer may have left; handlers.results.made decides whether that is
the volume or a copy.  In doubt another one is made, and nothing is deleted: what is left is
`volume_of_nobody`, for an operator.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import structlog

from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.results import made
from handlers.results.made import UNFINISHED
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, PortError, VolumeView
from host_agent.shared.contract.volume_states import AT_WORK, is_migrating
from ledger.core.steps.attachments import unknown_ended
from ledger.core.steps.context import EffectContext, given_up
from ledger.log.unit import AggregateStore

_log = structlog.get_logger(__name__)

#: How long to wait for a volume to be made before it can be deleted (nova waits as long).
MADE_S = 180.0
MADE_POLL_S = 5.0
#: Cinder deletes none of these, and they pass.  One that it writes an image of stays `uploading`
#: when its last attachment goes, which that does not harm.
PASSING = UNFINISHED | AT_WORK | {"uploading"}
#: Cinder waits to hear that the guest has all of the volume (3.71).
EXTENDING = "extending"


@dataclass
class Marked:
    """The volumes with a disk's mark that the ledger made, and why others are not
    accepted as such.
    """

    ours: list[VolumeView] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


def volume_create(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Create the volume of a new server's disk, if one is requested; or take over one whose answer
    was lost.
    """
    if lane.create is None:
        return {}
    for volume in [] if context.first else marked(lane, context).ours:
        if not context.book.get(Volume, volume.id).deleted:
            return {"volume_id": volume.id, "adopted": True}
    return {"volume_id": context.cinder.volume_create(lane.create, lane.bdm_id)}


def take_back_volume(
    lane: Lane, made: dict[str, Any], context: EffectContext, store: AggregateStore
) -> None:
    """Delete what was made in addition; nothing, if no volume was requested."""
    volume_id = made.get("volume_id")
    if volume_id is None or made.get("adopted"):
        return
    of = {"server_id": lane.server_id}
    if not given_up(Volume, volume_id, Volume.VolumeDeleted, context, store, **of).deleted:
        return
    for _ in range(round(MADE_S / MADE_POLL_S)):
        if context.cinder.volume(volume_id).status not in UNFINISHED:
            break
        context.wait(MADE_POLL_S)  # Cinder deletes none that it is still making
    context.cinder.volume_delete(volume_id)


def volume_await(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Wait until a volume that was made is available.  S3: a multi-attach volume is not made here.

    Only the volume itself shows that: its type may be Cinder's default, or its snapshot's.
    """
    if lane.create is None:
        return {}
    volume = context.cinder.volume(lane.volume_id)
    if volume.multiattach:
        text = (
            f"Volume {volume.id} was made of a multi-attach type, which is not done for a new "
            "server: make the volume first, and give it by its id."
        )
        raise PortError(ErrorKind.FINAL, "made_multiattach", text)
    if volume.status.startswith("error"):
        text = f"Volume {volume.id} could not be created ({volume.status}): see its messages."
        raise PortError(ErrorKind.FINAL, "volume_error", text)
    if volume.status not in {"available", "reserved", "in-use"}:
        raise not_ready(volume)
    return {}


def volume_unmake(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete what was made for the lane, unless the server has it: then it is deleted with the
    server.

    The server has it once it is reserved; that stays if a server cannot be built (LP 1899649).  Nor
    is a volume deleted that was given to another server before the ledger knew of it.
    """
    if lane.create is None or context.book.get(BlockDeviceMapping, lane.bdm_id).volume_id:
        return {}
    found, deleted, ended = marked(lane, context), list[str](), dict[str, str]()
    for volume in found.ours:
        if volume.status in PASSING:
            raise not_ready(volume)
        if set(context.book.get(Volume, volume.id).holders.values()) - {lane.server_id}:
            continue
        ended |= delete_with_reservations(volume.id, lane, context)
        deleted.append(volume.id)
    gone = volumes_gone(deleted, ended) if deleted else {}
    return {**gone, "left": found.others} if found.others else gone


def volume_delete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Delete the volume with its server, if requested; a refusal is recorded, and is not fatal
    (S3).

    The deletion of its last attachment does this: before, Cinder would refuse.
    """
    try:
        if lane.create is not None:
            return volume_unmake(lane, context)
        held = context.book.get(Volume, lane.volume_id).held_by(lane.server_id)
        if not lane.delete_on_termination or held:
            return {}
        ended = delete_with_reservations(lane.volume_id, lane, context)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
        _refuse_at_work(lane, context)
        return {"refused": error.message}
    return volumes_gone([lane.volume_id], ended)


def _refuse_at_work(lane: Lane, context: EffectContext) -> None:
    """A refusal that lasts only until Cinder has finished its work on the volume is retried."""
    try:
        volume = context.cinder.volume(lane.volume_id) if lane.volume_id else None
    except PortError as error:
        if error.code != "not_found":
            raise
        return
    if volume is not None and (volume.status in PASSING or is_migrating(volume)):
        raise not_ready(volume)


def volumes_gone(deleted: list[str], ended: dict[str, str]) -> dict[str, Any]:
    return {"deleted": deleted, "ended": ended} if ended else {"deleted": deleted}


def delete_with_reservations(volume_id: str, lane: Lane, context: EffectContext) -> dict[str, str]:
    """A late reservation that nobody knows would keep the volume for ever.

    If Cinder does not show the attachments, the deletion tells whether there are any.
    """
    ended: dict[str, str] = {}
    try:
        ended = {} if lane.legacy else unknown_ended(volume_id, lane.server_id, context)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
    context.cinder.volume_delete(volume_id)
    return ended


def not_ready(volume: VolumeView) -> PortError:
    text = f"Volume {volume.id} is {volume.status}."
    return PortError(ErrorKind.RETRYABLE, "volume_not_ready", text)


# --- what Cinder itself does with one, and waits for -------------------------------------------


def migration_complete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder's own migration is done; Cinder says which of the two ids the volume keeps (S1)."""
    return {"volume_id": _end_migration(lane, context, error=False)}


def migration_fail(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder's own migration failed: Cinder deletes the new volume."""
    _end_migration(lane, context, error=True)
    return {}


def _end_migration(lane: Lane, context: EffectContext, *, error: bool) -> str:
    assert lane.other is not None, "a swap has two sides"
    old, new = lane.other.volume_id, lane.volume_id
    return context.cinder.migrate_volume_completion(old, new, error=error)


def extension_complete(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest has the new size: a Cinder that waits for that accepts it."""
    if context.cinder.volume(lane.volume_id).status == EXTENDING:
        context.cinder.extend_volume_completion(lane.volume_id, error=False)
    return {}


def extension_revoke(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest has the new size, and it is unknown whether Cinder has been told."""
    if context.cinder.volume(lane.volume_id).status not in {EXTENDING, "error_extending"}:
        return {"passed": True}
    return extension_fail(lane, context)


def extension_fail(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest does not have the new size: Cinder shows `error_extending`, if it does not yet."""
    if context.cinder.volume(lane.volume_id).status == EXTENDING:
        context.cinder.extend_volume_completion(lane.volume_id, error=True)
    return {}


# --- which are ours -----------------------------------------------------------------------------


def marked(lane: Lane, context: EffectContext) -> Marked:
    """The volumes that have the lane's mark, or that were made with it by the log: one may appear
    late, and its owner may remove the mark.
    """
    if context.uncertain:
        context.wait(LATE_S)
    create = lane.create or {}
    shown = context.cinder.volumes_made(lane.bdm_id, create.get("project_id"))
    making = _making(create.get("operation_id"), context)
    found = Marked()
    if not any(volume.id == lane.volume_id for volume in shown):
        found.ours += _made_by_log(lane, context)
    for volume in shown:
        known = context.book.get(Volume, volume.id)
        if known.deleted or known.mark == lane.bdm_id:
            found.ours += [] if "deleting" in volume.status else [volume]
            continue
        beside = [each.id for each in shown]
        evidence = evidence_of(volume, lane.bdm_id, making, context, beside)
        if (why := made.why_not(evidence)) is None:
            found.ours.append(volume)
        else:
            found.others[volume.id] = why
            _log.warning("volume_not_taken", volume=volume.id, mark=lane.bdm_id, why=why)
    return found


def _making(operation_id: str | None, context: EffectContext) -> Operation | None:
    """The operation that requested the volume: a deletion removes what another
    operation has made.
    """
    return context.book.get(Operation, operation_id) if operation_id else context.operation


def _made_by_log(lane: Lane, context: EffectContext) -> list[VolumeView]:
    if not lane.volume_id or context.book.get(Volume, lane.volume_id).mark != lane.bdm_id:
        return []
    try:
        volume = context.cinder.volume(lane.volume_id)
    except PortError as error:
        if error.code != "not_found":
            raise
        return []
    return [] if "deleting" in volume.status else [volume]


def evidence_of(
    volume: VolumeView,
    mark: str | None,
    making: Operation | None,
    context: EffectContext,
    beside: Collection[str],
) -> made.Evidence:
    """The evidence whether the volume is what this operation made.  `beside`: all volumes with its
    mark, in the project for which it was requested.

    If another one is known as that volume, or may be it, nothing more is asked.
    """
    known = context.book.get(Volume, volume.id)
    logged = known.mark or (mark if known.deleted else None)
    if logged is not None:
        more = _uses(volume, context) if logged == mark else {}
        return made.Evidence(volume=volume, mark=mark, logged=logged, **more)
    wanted, asked, learnt = made.asked_by(making, mark) if making and mark else (None, None, "")
    if wanted is None or mark is None:
        return made.Evidence(volume=volume, mark=mark)
    mapped = context.book.get(BlockDeviceMapping, mark).volume_id or ""
    given_up = {each for each in beside if context.book.get(Volume, each).deleted}
    others = ({*beside, learnt, mapped} - {volume.id, ""}) - given_up
    return made.Evidence(
        volume=volume,
        mark=mark,
        wanted=wanted,
        asked=asked,
        others=tuple(sorted(others)),
        in_project=volume.id in beside,
        user_id=context.cinder.own_user(),
        **({} if others else _uses(volume, context)),
    )


def _uses(volume: VolumeView, context: EffectContext) -> dict[str, Any]:
    """The uses of a volume, and what was made from it."""
    try:
        rows = context.cinder.attachments(volume.id, None)
    except PortError as error:
        if error.kind is not ErrorKind.FINAL:
            raise
        return {}
    return {
        "attachments": tuple(row.id for row in rows),
        "dependents": context.cinder.dependents(volume.id),
    }
