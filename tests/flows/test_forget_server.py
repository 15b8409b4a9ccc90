"""Forgetting a server whose guest has vanished: what it releases, and by what it refuses.

Faults at every point of it are the generic tests' (test_every_flow).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.instance import Instance
from aggregates.operation import Outcome
from aggregates.volume import Volume
from handlers.drift import recheck
from handlers.drift.automatic import RepairPolicy, SoFar, why_not
from handlers.drift.repairs import REPAIRS, RepairContext
from handlers.engine.plan import plan_of
from handlers.engine.verbs import LedgerVerb
from handlers.requests.build import BootDisk
from handlers.requests.lanes import of_attachment
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import Disk
from host_agent.simulated.host_state import guest_state
from tests.flows import drifted
from tests.flows.drifted import finding
from tests.flows.test_presence import refused_undo
from tests.unit.test_aggregate_facts import CREATED
from tests.world import CONTEXT, HOST, OTHER, World


def _refused(world: World) -> dict[str, Any]:
    before = world.summary()
    operation = world.run(drifted.repair(world))
    assert operation.outcome is Outcome.FAILED
    assert world.summary() == before
    assert (finding(world).state, finding(world).repairing) == ("confirmed", None)
    return operation.first_error or {}


# --- what it does -----------------------------------------------------------------------------


def test_all_that_the_server_had_is_released_and_no_volume_goes_with_it() -> None:
    world = drifted.guest_missing()  # whose volumes were to be deleted with it
    volumes = world.known_volumes()
    world.done(drifted.repair(world))
    assert world.instance.deleted
    left = world.summary()
    assert not any(left[what] for what in ("cinder", "ledger", "mappings", "claims", "devices"))
    assert world.known_volumes() == volumes
    assert left["volumes"] == ["available", "available"]
    assert left["connected"] == {HOST: 0, OTHER: 0}
    assert world.records[HOST] == {}
    assert not {"guests.remove", "guests.unplug", "guests.stop"} & set(world.trouble.met)
    assert world.wrong() == []


def test_a_server_without_volumes_is_forgotten() -> None:
    world = drifted.guest_missing(volumes=0)
    operation = world.run(drifted.repair(world))
    assert (operation.outcome, world.instance.deleted) == ("completed", True)
    assert [lane.host for lane in operation.lanes] == [HOST]


def test_the_place_of_a_root_that_is_detached_goes_with_the_server() -> None:
    world = World(None)
    world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0)))
    world.done(world.act("stop")).done(world.detach(root_allowed=True))
    assert len(world.instance.devices) == 1
    drifted.guest_lost(world)
    world.done(drifted.repair(world))
    assert (world.instance.deleted, world.instance.devices) == (True, {})
    assert world.mappings() == []


def test_every_host_that_may_have_the_guest_is_asked() -> None:
    world = World()
    world.done(world.attach()).done(world.act("live_migrate", destination=OTHER))
    drifted.guest_lost(world)
    operation = world.run(drifted.repair(world))
    assert [(lane.host, lane.volume_id != "") for lane in operation.lanes] == [
        (OTHER, True),
        (HOST, False),
    ]
    assert operation.outcome == "completed"
    assert world.wrong() == []


def test_a_mapping_that_a_refused_undo_has_left_goes_with_the_server() -> None:
    """Its attachment is deleted already, so none of the server's leads to it."""
    world = World()
    attach = refused_undo(world)
    world.service.act(str(attach.id), "give_up", "it is over", CONTEXT)
    assert world.instance.devices
    drifted.guest_lost(world)
    world.done(drifted.repair(world))
    assert (world.instance.deleted, world.instance.devices) == (True, {})
    assert world.mappings() == []
    assert world.wrong() == []


def case_of(world: World, **more: Any) -> RepairContext:
    nothing = dict.fromkeys(("attachment", "volume", "shown", "view"))
    known = {"server_id": world.server_id, "instance": world.instance, "mappings": ()}
    about: dict[str, Any] = {**nothing, **known, "hosts": [OTHER], **more}
    return RepairContext(finding=finding(world), **about)


@pytest.mark.parametrize(
    ("flow", "so", "why"),
    [
        ("forget_server", {"instance": Instance(UUID(int=8))}, "the server is on no host"),
        ("drop_attachment", {"hosts": []}, "an unknown host was given the volume"),
        ("plug_disk", {"volume": Volume(UUID(int=9))}, "no device of the server goes through it"),
    ],
)
def test_a_repair_that_lacks_what_it_goes_by_says_what(
    flow: str, so: dict[str, Any], why: str
) -> None:
    world = drifted.guest_missing()
    with pytest.raises(errors.RepairError, match=why) as refused:
        REPAIRS[flow].lanes(case_of(world, **so), "no mapping")
    assert refused.value.fields["finding_id"] == str(finding(world).id)


def test_an_attachment_that_no_device_goes_through_is_released_as_well() -> None:
    """Where it is, or, if it is on no host yet, where the server is."""
    world = drifted.guest_missing(volumes=1)
    volume = world.store.load(Volume, UUID(world.volumes[0]))
    [attachment_id] = volume.holders
    reserved = Attachment(uuid4())
    held = [(world.store.load(Attachment, UUID(attachment_id)), volume), (reserved, volume)]
    case = case_of(world, held=held)
    bare = Lane(
        server_id=world.server_id,
        volume_id="",
        bdm_id="no mapping",
        attachment_id=None,
        device_name=None,
    )
    assert REPAIRS["forget_server"].lanes(case, "no mapping") == [
        replace(bare, volume_id=str(volume.id), attachment_id=attachment_id, host=HOST),
        replace(bare, volume_id=str(volume.id), attachment_id=str(reserved.id), host=HOST),
        replace(bare, host=OTHER),
    ]


def test_a_fence_releases_what_nobody_there_uses_unless_another_attachment_stands_for_it() -> None:
    for world, instead in (
        (drifted.guest_missing(), LedgerVerb.CONNECTION_WAIVE),
        (drifted.attachment_lost(), None),
    ):
        plan = plan_of(world.operation(drifted.repair(world)))
        assert plan.instead("release", undo=False) is instead


def test_an_attachment_without_a_mapping_is_a_lane_of_what_is_known_of_it() -> None:
    attachment = Attachment(UUID(int=7))
    attachment.record(Attachment.AttachmentCreated, **CREATED)
    lane = of_attachment(attachment, None, HOST, "no mapping", ["another"])
    assert lane == Lane(
        server_id="s",
        volume_id="v",
        bdm_id="no mapping",
        attachment_id=str(attachment.id),
        device_name=None,
        access_mode="ro",
        host=HOST,
        legacy=True,
        known=("another",),
    )


# --- what it needs ----------------------------------------------------------------------------


def _back(world: World) -> None:
    with world.host.edit() as state:
        state["guests"][world.server_id] = guest_state(server_id=world.server_id)


def _elsewhere(world: World) -> None:
    """Somebody has moved it by hand."""
    with world.hosts[OTHER].edit() as state:
        state["guests"][world.server_id] = guest_state(
            server_id=world.server_id, power_state=PowerState.SHUTDOWN.value
        )


def _lost_by_libvirt(world: World) -> None:
    """It was started without its state: QEMU runs on, and writes."""
    with world.host.edit() as state:
        state["processes"] = [world.server_id]


def _defined_by_another_name(world: World) -> None:
    other, volume_id = str(UUID(int=8)), world.volumes[0]
    path = next(iter(world.host.read()["connected"].values()))["path"]
    with world.host.edit() as state:
        state["guests"][other] = guest_state(server_id=other)
    source = {"type": "block", "path": path}
    disk = Disk(serial=volume_id, source=source, device_name="vdb", bus="virtio")
    drifted._guests(world).plug(other, disk)


def _connected_for_another(world: World) -> None:
    record, other = next(iter(world.records[HOST].values())), str(UUID(int=9))
    world.records[HOST][other] = replace(record, attachment_id=other, server_id=other)


def _without_records(world: World) -> None:
    world.records[HOST].clear()


@pytest.mark.parametrize(
    ("plant", "code", "words"),
    [
        (_back, recheck.GONE, "Finding no longer holds (guest_missing)."),
        (_elsewhere, recheck.UNPROVEN, f"Host {OTHER} has the guest"),
        (_lost_by_libvirt, recheck.UNPROVEN, f"Host {HOST} runs a process of the guest"),
        (_defined_by_another_name, recheck.UNPROVEN, "is in use on host"),
        (_connected_for_another, recheck.UNPROVEN, "is in use on host"),
        (_without_records, recheck.UNPROVEN, "`server delete` lets go of it"),
    ],
)
def test_a_server_is_kept_that_a_host_may_still_have(
    plant: Callable[[World], None], code: str, words: str
) -> None:
    world = World()
    world.done(world.attach()).done(world.act("live_migrate", destination=OTHER))
    world.done(world.act("live_migrate", destination=HOST))
    drifted.guest_lost(world)
    plant(world)
    error = _refused(world)
    assert error["code"] == code
    assert words in error["message"]


def test_a_server_that_is_resized_is_settled_first() -> None:
    world = World()
    world.done(world.act("resize", destination=OTHER))
    drifted.guest_lost(world)
    with pytest.raises(errors.RepairError, match="confirm or revert that first"):
        drifted.repair(world)


def test_what_the_old_calls_attached_is_released_by_a_deletion() -> None:
    with pytest.raises(errors.RepairError, match="`server delete` releases them"):
        drifted.repair(drifted.guest_missing(legacy=True))


def test_a_server_at_which_something_is_at_work_or_parked_is_kept() -> None:
    world = drifted.guest_missing()
    busy = world.act("rebuild")
    with pytest.raises(errors.ClaimedError, match=busy):
        drifted.repair(world)


def test_settings_cannot_have_servers_forgotten_unasked() -> None:
    known = finding(drifted.guest_missing())
    policy = RepairPolicy(classes=frozenset({"guest_missing"}))
    so_far = SoFar(begun=0, begun_there=0, attachments_there=100)
    assert why_not(known, policy, so_far) == "its class is not repaired automatically"
