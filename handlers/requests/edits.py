"""Changes of a server's stored and shown properties: no operation, no host.

Each function changes the aggregate, or raises a DomainError.  A change to the present value records
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
    """Change the flag of the mapping by which the server had the volume at the time of the request.

    Raises NotAttachedError if the server has released it since, or has another one instead;
    ObservedServerError if the server is only observed.
    """
    if not mapping.live or mapping.volume_id != volume_id:
        raise errors.NotAttachedError(server_id=server_id, volume_id=volume_id)
    mapping.set_delete_on_termination(value)


# ---------------------------------------------------------------- what is kept and shown


def describe(
    instance: Instance, wanted: Mapping[str, Any], context: EventContext, action: str = "update"
) -> None:
    """Store these properties: `name`, or those of `aggregates.server.DEFAULT_DETAILS`."""
    check_vm_state(instance, action, _THERE, context)
    known = {**instance.details, "name": instance.name}
    changed = {name: value for name, value in wanted.items() if known[name] != value}
    if changed:
        instance.record(Instance.Described, changed=changed)


def update(instance: Instance, context: EventContext, *, wanted: Mapping[str, Any]) -> None:
    """Nova's PUT of a server.  A lock does not refuse it."""
    describe(instance, wanted, context)


def set_metadata(
    instance: Instance, context: EventContext, *, items: Mapping[str, str], whole: bool
) -> None:
    """Set these items; `whole`: and remove all others.  Raises MetadataItemsError, LockedError."""
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
    """Replace the tags, without duplicates.  As in Nova, a lock does not refuse it."""
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

    As nova.compute.api.API.lock: a second lock by a user of the server's project changes nothing; a
    second lock by anybody else replaces the first.
    """
    by = _whose(instance, context)
    if instance.locked and by == _OWNER:
        return
    known = instance.locked and (instance.locked.by, instance.locked.reason)
    if known != (by, reason):
        instance.record(Instance.Locked, by=by, reason=reason)


def unlock(instance: Instance, context: EventContext, *, overrides: bool) -> None:
    """`overrides`: the caller may remove anybody's lock.  Raises UnlockError (nova's
    is_expected_locked_by).
    """
    if instance.locked is None:
        return
    if instance.locked.by != _whose(instance, context) and not overrides:
        raise errors.UnlockError(rule=OVERRIDE_RULE)
    instance.record(Instance.Unlocked)


def _whose(instance: Instance, context: EventContext) -> str:
    """Decided by the project alone, whatever the roles: Nova's is_owner."""
    project_id = context.actor.project_id
    return _OWNER if project_id and project_id == instance.project_id else _ADMIN


# ------------------------------------------------------------------------------- state


def reset_state(instance: Instance, _: EventContext, *, state: str) -> None:
    """Nova's os-resetState.  "error" is shown until a flow says where the guest is, or until
    "active" removes it.  "active" also removes the shown errors of parked operations, which stay
    parked with their claims.

    Raises ClaimedError if a parked operation leaves the server's state unknown; VmStateError if the
    server is not active and shows no error.
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
