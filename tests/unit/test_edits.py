"""What of a server is changed without an operation, and whom a lock holds up."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.base import Actor, EventContext
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.server import DEFAULT_DETAILS
from handlers.flows import FLOWS
from handlers.requests import edits, guards
from handlers.requests.actions import RULES
from ledger.nova.servers.state import TASK_OF_FLOW
from tests.unit.test_aggregate_facts import MAPPED, after

ID = UUID(int=9)


def context(project_id: str | None = "own", *, operator: bool = False) -> EventContext:
    actor = Actor(name="somebody", project_id=project_id)
    return EventContext(actor=actor, request_id="req", cause="api", passes_locks=operator)


MEMBER, OPERATOR = context(), context("operators", operator=True)


def server(power_state: str = "running") -> Instance:
    instance = Instance(ID)
    instance.observe(name="vm", host="h", power_state=power_state, owner=("own", "u"))
    return instance


def who_locked(instance: Instance) -> tuple[str, str | None] | None:
    return (instance.locked.by, instance.locked.reason) if instance.locked else None


def shown(instance: Instance) -> VmState:
    return instance.vm_state


#: By hand from nova/compute/api.py: which of what there is here has check_instance_lock.
HELD_UP = [
    *("attach_volume", "detach_volume", "swap_volume", "delete", "os-migrateLive", "resize"),
    *("confirmResize", "revertResize", "shelve", "unshelve", "start", "stop", "pause", "unpause"),
    *("reboot", "rebuild", "unwind"),
]
NOT_HELD_UP = ["evacuate", "refresh", "convert", "snapshot", "delete_snapshot"]


def test_a_lock_holds_up_what_novas_holds_up() -> None:
    assert {rule.action for rule in RULES.values()} <= {*HELD_UP, *NOT_HELD_UP}
    instance = server()
    edits.lock(instance, MEMBER, reason=None)
    everything = frozenset(VmState)
    for action in HELD_UP:
        with pytest.raises(errors.LockedError, match=f"Instance {ID} is locked"):
            guards.check_vm_state(instance, action, everything, MEMBER)
        guards.check_vm_state(instance, action, everything, OPERATOR)
    for action in NOT_HELD_UP:
        guards.check_vm_state(instance, action, everything, MEMBER)
    edits.unlock(instance, MEMBER, overrides=False)
    guards.check_vm_state(instance, "os-stop", everything, MEMBER)


def test_a_lock_is_told_before_a_state() -> None:
    """As nova-api has them: who unlocks it learns what else is in the way."""
    instance = server("shutdown")
    edits.lock(instance, MEMBER, reason=None)
    with pytest.raises(errors.LockedError):
        guards.check_vm_state(instance, "os-stop", {VmState.ACTIVE}, MEMBER)


#: What else is changed, and whether a lock holds it up: in Nova names and tags have no guard.
CHANGES: list[tuple[Any, dict[str, Any], bool]] = [
    (edits.update, {"wanted": {"name": "new"}}, False),
    (edits.set_tags, {"tags": ["b"]}, False),
    (edits.add_tag, {"tag": "b"}, False),
    (edits.drop_tag, {"tag": "a"}, False),
    (edits.set_metadata, {"items": {"b": "2"}, "whole": False}, True),
    (edits.set_metadata, {"items": {}, "whole": True}, True),
    (edits.drop_metadata, {"key": "a"}, True),
]


def test_a_lock_holds_up_metadata_and_no_names_or_tags() -> None:
    for change, given, held_up in CHANGES:
        instance = server()
        edits.set_tags(instance, MEMBER, tags=["a"])
        edits.set_metadata(instance, MEMBER, items={"a": "1"}, whole=True)
        edits.lock(instance, MEMBER, reason=None)
        before = instance.version
        if held_up:
            with pytest.raises(errors.LockedError):
                change(instance, MEMBER, **given)
            assert instance.version == before
        change(instance, OPERATOR if held_up else MEMBER, **given)
        assert instance.version == before + 1, given


def test_who_locked_a_server_is_who_unlocks_it() -> None:
    """nova.compute.api: the project says who is the owner, whatever roles somebody has."""
    for first, other in ((MEMBER, OPERATOR), (OPERATOR, MEMBER)):
        instance = server()
        edits.lock(instance, first, reason="mine")
        with pytest.raises(errors.UnlockError, match="unlock_override"):
            edits.unlock(instance, other, overrides=False)
        assert who_locked(instance)
        edits.unlock(instance, other, overrides=True)
        assert who_locked(instance) is None
        edits.lock(instance, first, reason="mine")
        edits.unlock(instance, first, overrides=False)
        edits.unlock(instance, first, overrides=False)  # it is no mistake
        assert who_locked(instance) is None


def test_an_operators_lock_takes_the_owners_place_and_not_the_other_way() -> None:
    instance = server()
    edits.lock(instance, MEMBER, reason="mine")
    edits.lock(instance, MEMBER, reason="another")
    assert who_locked(instance) == ("owner", "mine")
    edits.lock(instance, OPERATOR, reason="ours")
    edits.lock(instance, OPERATOR, reason="ours")
    edits.lock(instance, MEMBER, reason="mine")
    assert who_locked(instance) == ("admin", "ours")
    assert instance.version == 3


def test_a_server_of_nobodys_is_not_that_of_who_is_in_no_project() -> None:
    instance = Instance(ID)
    instance.observe(name="vm", host="h", power_state="running")
    edits.lock(instance, context(None), reason=None)
    assert who_locked(instance) == ("admin", None)


# ------------------------------------------------------------------------------- state


def test_an_operators_error_is_shown_and_opens_and_closes_nothing() -> None:
    instance = server()
    edits.reset_state(instance, OPERATOR, state="error")
    edits.reset_state(instance, OPERATOR, state="error")
    assert (instance.vm_state, instance.own_state) == (VmState.ERROR, VmState.ACTIVE)
    edits.reset_state(instance, OPERATOR, state="active")
    assert instance.vm_state is VmState.ACTIVE
    assert instance.version == 3


def test_an_operators_error_goes_when_a_flow_says_where_the_guest_is() -> None:
    """As vm_state in Nova, also where the guest is what it was: after a reboot, a rebuild."""
    instance = server()
    edits.reset_state(instance, OPERATOR, state="error")
    instance.observe(name="vm", host="h", power_state="paused", owner=("own", "u"))
    assert shown(instance) is VmState.ERROR  # hosts say what runs, not that it is well
    instance.place("h", "paused", 0)
    assert shown(instance) is VmState.PAUSED


def test_errors_of_what_is_parked_are_taken_off_and_its_claims_stay() -> None:
    instance = server()
    instance.claim("op", exclusive=False, flow="attach")
    instance.record(Instance.Faulted, claimant="op", message="broken")
    edits.reset_state(instance, OPERATOR, state="active")
    assert (instance.vm_state, instance.faults) == (VmState.ACTIVE, {})
    assert instance.claims["op"].parked
    with pytest.raises(errors.ClaimedError):
        instance.refuse_claimed(exclusive=True)
    instance.record(Instance.Faulted, claimant="op", message="again")
    assert instance.vm_state is VmState.ERROR
    edits.reset_state(instance, OPERATOR, state="active")
    instance.release("op")
    assert (instance.claims, instance.faults) == ({}, {})


def test_what_is_parked_and_has_the_whole_server_is_what_its_task_would_tell() -> None:
    """So a server whose error was taken off never shows the task of what does nothing."""
    assert all(FLOWS[flow].exclusive for flow in TASK_OF_FLOW if flow in FLOWS)


def test_a_state_that_would_be_a_lie_is_not_set() -> None:
    half_way = server()
    half_way.claim("op", exclusive=True, flow="resize")
    half_way.record(Instance.Faulted, claimant="op", message="broken")
    never_built = server()
    never_built.record(Instance.Faulted, claimant=str(ID), message="no host")
    for instance, error in (
        (half_way, errors.ClaimedError),
        (never_built, errors.VmStateError),
        (server("shutdown"), errors.VmStateError),
    ):
        before = instance.version
        with pytest.raises(error):
            edits.reset_state(instance, OPERATOR, state="active")
        assert instance.version == before
    with pytest.raises(errors.VmStateError, match=f"Cannot 'os-resetState' instance {ID}"):
        edits.reset_state(server("shutdown"), OPERATOR, state="active")
    running = server()
    edits.reset_state(running, OPERATOR, state="active")
    assert running.version == 1  # nothing to take off


def test_a_stopped_server_without_its_error_is_shown_as_stopped() -> None:
    instance = server("shutdown")
    edits.reset_state(instance, OPERATOR, state="error")
    edits.reset_state(instance, OPERATOR, state="active")
    assert instance.vm_state is VmState.STOPPED


# -------------------------------------------------------------------------------- kept


def test_what_is_already_so_is_not_recorded() -> None:
    instance = server()
    edits.update(instance, MEMBER, wanted={**DEFAULT_DETAILS, "name": "vm"})
    assert instance.version == 1
    edits.update(instance, MEMBER, wanted={"name": "vm", "description": "mine"})
    [_, event] = instance.collect_events()
    assert isinstance(event, Instance.Described)
    assert event.changed == {"description": "mine"}
    edits.update(instance, MEMBER, wanted={"description": None})
    assert instance.details == DEFAULT_DETAILS


def test_a_host_does_not_take_a_name_back() -> None:
    instance = server()
    edits.update(instance, MEMBER, wanted={"name": "new"})
    instance.observe(name="vm", host="h", power_state="shutdown", owner=("own", "u"))
    assert (instance.name, instance.power_state) == ("new", "shutdown")


def test_metadata_and_tags_are_bounded() -> None:
    instance = server()
    full = {f"k{number}": "v" for number in range(edits.METADATA_MAX)}
    edits.set_metadata(instance, MEMBER, items=full, whole=True)
    edits.set_metadata(instance, MEMBER, items={"k1": "other"}, whole=False)
    with pytest.raises(errors.MetadataItemsError):
        edits.set_metadata(instance, MEMBER, items={"more": ""}, whole=False)
    edits.set_metadata(instance, MEMBER, items={"more": ""}, whole=True)
    assert instance.details["metadata"] == {"more": ""}
    with pytest.raises(errors.MetadataItemError):
        edits.drop_metadata(instance, MEMBER, key="k1")
    tags = [f"t{number}" for number in range(edits.TAGS_MAX)]
    edits.set_tags(instance, MEMBER, tags=tags)
    edits.add_tag(instance, MEMBER, tag="t1")
    with pytest.raises(errors.ServerTagsError):
        edits.add_tag(instance, MEMBER, tag="more")
    with pytest.raises(errors.ServerTagError, match=f"Server {ID} has no tag 'more'"):
        edits.drop_tag(instance, MEMBER, tag="more")


def test_of_a_deleted_server_nothing_is_changed() -> None:
    """A request may have been on its way when it was deleted."""
    instance = server()
    instance.record(Instance.Deleted)
    with pytest.raises(errors.VmStateError):
        edits.update(instance, MEMBER, wanted={"name": "new"})


def test_of_a_volume_that_was_let_go_nothing_is_changed() -> None:
    """It may have been on its way out when this was asked for."""
    volume_id = str(MAPPED["volume_id"])
    flag = partial(edits.set_delete_on_termination, server_id="s", volume_id=volume_id)
    told = f"Instance s is not attached to volume {volume_id}"
    ended, swapped = (
        after(BlockDeviceMapping, (BlockDeviceMapping.MappingCreated, MAPPED)) for _ in range(2)
    )
    flag(ended, MEMBER, value=False)
    assert not ended.delete_on_termination
    ended.record(BlockDeviceMapping.DeviceUnplugged)
    ended.record(BlockDeviceMapping.MappingEnded)
    new = {"volume_id": "another", "attachment_id": "another's"}
    swapped.record(BlockDeviceMapping.AttachmentSwitched, **new)
    for mapping in (ended, swapped):
        with pytest.raises(errors.NotAttachedError, match=told):
            flag(mapping, MEMBER, value=True)
