"""What a server's attachment is, it stays: every fact of it survives every flow.

One case is a fact and a flow.  The fact is set when the volume is attached; after the flow it
is read from wherever it has to be: the ledger's mapping and attachment, Cinder's row, the
running guest, and its definition.  Cinder forgets what it can: the volume's flag that made the
attachment read-only is taken back as soon as it is attached.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from aggregates import errors
from handlers.requests.build import BootDisk
from host_agent.libvirt import disk_xml
from host_agent.libvirt.disk_xml import DiskSeen
from host_agent.shared.contract.messages import PowerState
from host_agent.simulated import host_state
from tests.memory import MemoryStore
from tests.world import HOST, OTHER, World

RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN
#: What every attach of these tests asks for.
ASKED: dict[str, Any] = {"device": "/dev/sdc", "tag": "data", "delete_on_termination": True}
#: What every volume's type says.
LIMITS = {"read_iops_sec": "500", "write_iops_sec": "100"}


def _act(*flows: str, **more: Any) -> Callable[[World], None]:
    moves = {"live_migrate", "resize", "unshelve"}

    def act(world: World) -> None:
        for flow in flows:
            where = {"destination": OTHER} if flow in moves else {}
            world.done(world.act(flow, **where, **more))

    return act


def _evacuate(world: World) -> None:
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))


def _swap(world: World) -> None:
    world.done(world.swap(*world.volumes))


def _migrate_by_cinder(world: World) -> None:
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    world.done(world.swap(*world.volumes, by_cinder=True))


def _kept_by_the_guest(world: World) -> None:
    """A detach that the guest refuses."""
    tripwire = world.ports["guests"]
    real = tripwire.unplug

    def refuse(server_id: str, serial: str) -> Any:
        from host_agent.verbs.context import final

        tripwire.unplug = real
        raise final("guest_refused", f"{server_id} keeps {serial}")

    tripwire.unplug = refuse
    assert world.run(world.detach()).outcome == "failed"


def _refresh(world: World) -> None:
    _act("stop", "refresh", "start")(world)


def _then(*acts: Callable[[World], None]) -> Callable[[World], None]:
    def act(world: World) -> None:
        for each in acts:
            each(world)

    return act


#: What may happen to a server with a volume; then it runs, or is to run as it is defined.
FLOWS: dict[str, Callable[[World], None]] = {
    "nothing": lambda _: None,
    "pause-unpause": _act("pause", "unpause"),
    "stop": _act("stop"),
    "stop-start": _act("stop", "start"),
    "reboot": _act("reboot"),
    "rebuild": _act("rebuild"),
    "refresh": _refresh,
    "live-migrate": _act("live_migrate"),
    "live-migrate-reboot": _act("live_migrate", "reboot"),
    "resize-confirm": _act("resize", "confirm_resize"),
    "resize-revert": _act("resize", "revert_resize"),
    "evacuate": _evacuate,
    "shelve-unshelve": _act("shelve", "unshelve"),
    "detach-refused": _kept_by_the_guest,
}
#: Those that volumes of several servers cannot have.
ALONE: dict[str, Callable[[World], None]] = {
    "swap": _swap,
    "swap-reboot": _then(_swap, _act("reboot")),
    "swap-live-migrate": _then(_swap, _act("live_migrate")),
    "migrate-volume": _migrate_by_cinder,
    "migrate-volume-reboot": _then(_migrate_by_cinder, _act("reboot")),
}
LEGACY = {**FLOWS, "convert": _act("convert"), "convert-reboot": _act("convert", "reboot")}


@dataclass
class Attached:
    """A server with a volume, and where its facts are."""

    world: World

    @property
    def mapping(self) -> Any:
        (mapping,) = self.world.mappings()
        return mapping

    @property
    def attachment(self) -> Any:
        return next(a for a in self.world.attachments() if str(a.id) == self.mapping.attachment_id)

    @property
    def row(self) -> Any:
        rows = self.world.cinder.attachments
        volume_id = self.mapping.volume_id
        return rows.get(self.mapping.attachment_id) or next(
            row for row in rows.values() if row.volume_id == volume_id
        )

    @property
    def disks(self) -> list[DiskSeen]:
        """In the running guest, if it runs, and in its definition."""
        host = self.world.hosts[self.world.instance.host or ""]
        guest = host.read()["guests"][self.world.server_id]
        copies = [guest[copy] for copy in ("live", "persistent") if guest[copy]]
        found = [disk_xml.parse(copy).disk_of(self.mapping.serial) for copy in copies]
        assert all(found), f"{len(copies)} copies of the guest, {found}"
        return [disk for disk in found if disk is not None]


def _attached(**more: Any) -> World:
    world = World(RUNNING, volumes=1, **more)
    _attach(world)
    return world


def _with_a_spare() -> World:
    world = World(RUNNING, volumes=2, encrypted=False)
    _attach(world)
    return world


def _attach(world: World) -> None:
    volume = world.cinder.volume(world.volumes[0])
    volume.readonly = True
    for each in world.volumes:
        world.cinder.volume(each).qos_specs = {**LIMITS, "total_bytes_sec": "a lot"}
    world.done(world.attach(volume.id, **ASKED))
    volume.readonly = None  # from now on nobody but the ledger knows


def _everywhere(attached: Attached, *, shared: bool = False) -> None:
    """Every fact of the attachment, wherever it has to be."""
    mapping, row = attached.mapping, attached.row
    assert mapping.access_mode == "ro"
    assert (mapping.tag, mapping.boot_index) == ("data", None)
    assert mapping.device_name == "sdc"
    assert mapping.delete_on_termination is True
    assert mapping.multiattach is shared
    assert mapping.serial == attached.world.volumes[0]
    assert attached.attachment.access_mode == "ro"
    assert row.mode == "ro"
    assert row.mountpoint == "/dev/sdc"
    assert attached.disks
    for disk in attached.disks:
        assert disk.readonly
        assert (disk.target, disk.bus, disk.serial) == ("sdc", "scsi", mapping.serial)
        assert disk.facts["shareable"] is shared
        assert {node.tag: node.text for node in disk.element.iterfind("iotune/*")} == LIMITS
    live, persistent = attached.disks[0], attached.disks[-1]
    assert disk_xml.differences(live, persistent) == ()


def _driven(world: World, flow: Callable[[World], None]) -> Attached:
    flow(world)
    assert world.wrong() == []
    return Attached(world)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("driver", ["iscsi", "rbd"])
def test_every_fact_of_an_attachment_survives_every_flow(flow: str, driver: str) -> None:
    attached = _driven(_attached(driver=driver), FLOWS[flow])
    _everywhere(attached)
    for disk in attached.disks:
        assert ('discard="unmap"' in disk.xml) is (driver == "rbd")


@pytest.mark.parametrize("flow", ALONE)
def test_every_fact_survives_when_another_volume_takes_its_place(flow: str) -> None:
    _everywhere(_driven(_with_a_spare(), ALONE[flow]))


@pytest.mark.parametrize("flow", FLOWS)
def test_every_fact_of_a_shared_volume_survives_every_flow(flow: str) -> None:
    _everywhere(_driven(_attached(multiattach=True), FLOWS[flow]), shared=True)


@pytest.mark.parametrize("flow", FLOWS)
def test_an_encrypted_volume_keeps_its_facts_and_its_secret(flow: str) -> None:
    attached = _driven(_attached(encrypted=True), FLOWS[flow])
    _everywhere(attached)
    assert all(disk_xml.secret_of(disk.xml) for disk in attached.disks)


@pytest.mark.parametrize("flow", LEGACY)
def test_every_fact_survives_with_cinders_old_calls(flow: str) -> None:
    attached = _driven(_attached(legacy=True), LEGACY[flow])
    _everywhere(attached)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_writable_attachment_stays_writable(flow: str) -> None:
    """Also where its Cinder takes it for read-only, which it says of all that os-attach had."""
    world = World(RUNNING)
    world.cinder.volume(world.volumes[0]).readonly = False
    world.done(world.attach(**ASKED))
    attached = _driven(world, FLOWS[flow])
    assert attached.mapping.access_mode == attached.attachment.access_mode == "rw"
    assert not any(disk.readonly for disk in attached.disks)


@pytest.mark.parametrize("flow", ["reboot", "live-migrate", "shelve-unshelve", "resize-revert"])
def test_a_root_volume_keeps_its_place_and_its_order(flow: str) -> None:
    world = World(None, volumes=1)
    world.cinder.volume(world.volumes[0]).readonly = True
    root = BootDisk(volume_id=world.volumes[0], boot_index=0, tag="root")
    world.done(world.build(root))
    world.cinder.volume(world.volumes[0]).readonly = None
    attached = _driven(world, FLOWS[flow])
    mapping = attached.mapping
    assert (mapping.boot_index, mapping.tag, mapping.access_mode) == (0, "root", "ro")
    assert all('<boot order="1"' in disk.xml for disk in attached.disks)
    assert all(disk.readonly for disk in attached.disks)


def test_a_read_only_root_that_takes_a_vacant_place_is_read_only_and_says_its_tag() -> None:
    world = World(None, volumes=2)
    first = BootDisk(volume_id=world.volumes[0], boot_index=0, tag="first")
    world.done(world.build(first)).done(world.act("stop"))
    world.done(world.detach(world.volumes[0], root_allowed=True))
    new = world.cinder.volume(world.volumes[1])
    new.readonly = True
    operation_id = world.attach(new.id, is_root=True, tag="second")
    [lane] = world.operation(operation_id).lanes
    assert lane.boot_index == 0, "its guest boots from it"
    assert world.instance.device_of(new.id) == world.instance.devices[lane.bdm_id]
    world.done(operation_id)
    new.readonly = None
    attached = _driven(world, _act("start", "reboot"))
    assert (attached.mapping.access_mode, attached.mapping.tag) == ("ro", "second")
    assert all(disk.readonly for disk in attached.disks)


def test_a_conversion_learns_what_cinder_says() -> None:
    world = World(RUNNING, legacy=True)
    world.done(world.attach())
    world.cinder.volume(world.volumes[0]).readonly = True
    world.done(world.act("convert"))
    world.cinder.volume(world.volumes[0]).readonly = None
    assert [each.access_mode for each in world.mappings()] == ["ro"]
    attached = _driven(world, _act("reboot"))
    assert attached.mapping.access_mode == "ro"
    assert all(disk.readonly for disk in attached.disks)


def test_a_swap_to_a_volume_that_nobody_may_write_is_refused_before_anything_is_done() -> None:
    world = World(RUNNING, volumes=2)
    world.done(world.attach())
    world.cinder.volume(world.volumes[1]).readonly = True
    stored = len(world.store.log)
    with pytest.raises(errors.SwapError, match="read-only"):
        world.swap(*world.volumes)
    assert len(world.store.log) == stored


def test_an_attachment_of_before_modes_were_kept_learns_its_mode_at_its_next_connection() -> None:
    """Absent means what it always meant: what Cinder says decides."""
    world = World(RUNNING)
    world.cinder.volume(world.volumes[0]).readonly = True
    world.done(world.attach())
    world.store = _as_before(world)
    world.boot()
    (mapping,) = world.mappings()
    assert mapping.access_mode is None
    _act("reboot")(world)
    (mapping,) = world.mappings()
    assert mapping.access_mode == "ro"


def _as_before(world: World) -> MemoryStore:
    """The log as it was stored before events had the field."""
    store = MemoryStore(lambda: world.trouble)
    store.log = list(world.store.log)
    for id_, stored in world.store.streams.items():
        bodies = [json.loads(event.state) for event in stored]
        for body in bodies:
            body.pop("access_mode", None)
        store.streams[id_] = [
            replace(event, state=json.dumps(body).encode())
            for event, body in zip(stored, bodies, strict=True)
        ]
    return store


def test_what_cinder_says_only_when_it_connects_is_learnt_and_kept() -> None:
    """Set between the request and the connection: the request did not see it."""
    world = World(RUNNING)
    operation_id = world.attach()
    world.cinder.volume(world.volumes[0]).readonly = True
    world.done(operation_id)
    world.cinder.volume(world.volumes[0]).readonly = None
    attached = _driven(world, _act("live_migrate", "reboot"))
    assert attached.mapping.access_mode == "ro"
    assert all(disk.readonly for disk in attached.disks)


@pytest.mark.parametrize("legacy", [False, True])
def test_an_agent_that_takes_itself_for_another_host_is_refused_in_words(legacy: bool) -> None:
    """It speaks for one host, and would connect the volume for another."""
    world = World(RUNNING, legacy=legacy)
    brick = world.ports["brick"]
    real = brick.connector
    brick.connector = lambda: {**real(), "host": OTHER}
    world.ports["host"] = OTHER
    operation = world.run(world.attach())
    assert operation.outcome == "failed"
    assert operation.first_error is not None
    assert operation.first_error["code"] == "foreign_connector"
    assert f"Host {HOST} reported" in operation.first_error["message"]
    assert f"of host {OTHER}" in operation.first_error["message"]
    brick.connector, world.ports["host"] = real, HOST
    assert world.wrong() == []
    assert world.mappings() == []
    assert world.attachments() == []


def test_an_attachment_whose_guest_and_definition_differ_is_not_completed() -> None:
    """After the plug, before Cinder is told: somebody edits the definition."""
    world = World(RUNNING)
    guests = world.ports["guests"]
    plug = guests.plug

    def plugged(server_id: str, disk: Any) -> Any:
        state = plug(server_id, disk)
        with world.host.edit() as host:
            guest = host["guests"][server_id]
            guest["persistent"] = host_state.without_disk(guest["persistent"], disk.device_name)
        return state

    guests.plug = plugged
    operation = world.run(world.attach())
    assert operation.first_error is not None
    assert operation.first_error["code"] == "guest_copies_differ"
    assert "presence" in operation.first_error["message"]
    assert not any(row.status == "attached" for row in world.cinder.attachments.values())
