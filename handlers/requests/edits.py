"""Changes of what is kept of a server and shown, and of what it shows: no operation, no host.

Each takes what the log has and changes it, or raises a DomainError; what is already so records
nothing (decision 0082).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregates import errors
from aggregates.base import EventContext
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.server import RESET
from handlers.requests.guards import check_vm_state

#: As many as Nova's default quota has.
METADATA_MAX, TAGS_MAX = 128, 50

#: Nova's rule of who may take a lock away that another one set.
OVERRIDE_RULE = "os_compute_api:os-lock-server:unlock:unlock_override"

_OWNER, _ADMIN = "owner", "admin"
_THERE = frozenset(VmState) - {VmState.DELETED}


def set_delete_on_termination(
    mapping: BlockDeviceMapping, _: EventContext, *, server_id: str, volume_id: str, value: bool
) -> None:
    """Change the flag of the mapping by which the server had the volume when this was asked for.

    Raises NotAttachedError if it has let it go since, or has another one in its place.
    """
    if not mapping.live or mapping.volume_id != volume_id:
        raise errors.NotAttachedError(server_id=server_id, volume_id=volume_id)
    mapping.set_delete_on_termination(value)


# ---------------------------------------------------------------- what is kept and shown


def describe(
    instance: Instance, wanted: Mapping[str, Any], context: EventContext, action: str = "update"
) -> None:
    """Keep these: `name`, or as `aggregates.server.DEFAULT_DETAILS` has them."""
    check_vm_state(instance, action, _THERE, context)
    known = {**instance.details, "name": instance.name}
    changed = {name: value for name, value in wanted.items() if known[name] != value}
    if changed:
        instance.record(Instance.Described, changed=changed)


def update(instance: Instance, context: EventContext, *, wanted: Mapping[str, Any]) -> None:
    """Nova's PUT of a server, which no lock holds up."""
    describe(instance, wanted, context)


def set_metadata(
    instance: Instance, context: EventContext, *, items: Mapping[str, str], whole: bool
) -> None:
    """Keep these items; `whole`: and no others.  Raises MetadataItemsError, LockedError."""
    wanted = dict(items) if whole else {**instance.details["metadata"], **items}
    if len(wanted) > METADATA_MAX:
        raise errors.MetadataItemsError(maximum=METADATA_MAX)
    describe(instance, {"metadata": wanted}, context, "update metadata")


def drop_metadata(instance: Instance, context: EventContext, *, key: str) -> None:
    """Raises MetadataItemError, LockedError."""
    wanted = dict(instance.details["metadata"])
    if wanted.pop(key, None) is None:
        raise errors.MetadataItemError
    describe(instance, {"metadata": wanted}, context, "delete metadata")


def set_tags(instance: Instance, context: EventContext, *, tags: list[str]) -> None:
    """These, each once, and no others; locks hold nobody up, as in Nova."""
    describe(instance, {"tags": list(dict.fromkeys(tags))}, context, "update tags")


def add_tag(instance: Instance, context: EventContext, *, tag: str) -> None:
    """Raises ServerTagsError."""
    known = instance.details["tags"]
    if tag not in known and len(known) >= TAGS_MAX:
        raise errors.ServerTagsError(maximum=TAGS_MAX)
    set_tags(instance, context, tags=[*known, tag])


def drop_tag(instance: Instance, context: EventContext, *, tag: str) -> None:
    """Raises ServerTagError."""
    known = instance.details["tags"]
    if tag not in known:
        raise errors.ServerTagError(server_id=str(instance.id), tag=tag)
    set_tags(instance, context, tags=[each for each in known if each != tag])


# ------------------------------------------------------------------------------- locks


def lock(instance: Instance, context: EventContext, *, reason: str | None) -> None:
    """Let only operators change the server.

    As nova.compute.api.API.lock: of who is in the server's project a second lock changes nothing;
    of others it takes the first one's place.
    """
    by = _whose(instance, context)
    if instance.locked and by == _OWNER:
        return
    known = instance.locked and (instance.locked.by, instance.locked.reason)
    if known != (by, reason):
        instance.record(Instance.Locked, by=by, reason=reason)


def unlock(instance: Instance, context: EventContext, *, overrides: bool) -> None:
    """`overrides`: whoever locked it.  Raises UnlockError (nova's is_expected_locked_by)."""
    if instance.locked is None:
        return
    if instance.locked.by != _whose(instance, context) and not overrides:
        raise errors.UnlockError(rule=OVERRIDE_RULE)
    instance.record(Instance.Unlocked)


def _whose(instance: Instance, context: EventContext) -> str:
    """By the project alone, whatever roles somebody has: Nova's is_owner."""
    project_id = context.actor.project_id
    return _OWNER if project_id and project_id == instance.project_id else _ADMIN


# ------------------------------------------------------------------------------- state


def reset_state(instance: Instance, _: EventContext, *, state: str) -> None:
    """Nova's os-resetState: "error" is shown until a flow says where the guest is, or "active"
    takes it back, with the errors of what is parked; that stays, with its claims.

    Raises ClaimedError if what is parked leaves nobody knowing what the server is, VmStateError if
    it is not active, and shows no error either.
    """
    if state == "error":
        if RESET not in instance.faults:
            instance.record(Instance.StateReset, state=state)
        return
    instance.refuse_parked()
    if instance.never_built or not (instance.faults or instance.own_state is VmState.ACTIVE):
        raise errors.VmStateError(
            action="os-resetState", server_id=str(instance.id), vm_state=instance.vm_state
        )
    if instance.faults:
        instance.record(Instance.StateReset, state=state)
