"""Verbs for whole guests, with the disks of all their volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, GuestOrder, PowerState, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.simulated.host_state import HOSTS, SCHEME, set_power
from tests.agent.bench import Bench
from tests.doubles.host_checks import broken_invariants, plugged

CONNECT = (Verb.ATTACHMENT_UPDATE, Verb.VOLUME_WAIT_READY, Verb.VOLUME_CONNECT)


def defined_once(bench: Bench) -> tuple[str, str]:
    """A server that is not here, and its definition."""
    server_id = bench.server(devices=[])
    (guest,) = [g for g in bench.guests.inventory() if g.server_id == server_id]
    bench.guests.remove(server_id)
    return server_id, str(guest.definition)


def connected(bench: Bench, server_id: str, *names: str, **over: Any) -> tuple[Lane, ...]:
    lanes = [bench.lane(server_id, device_name=name, **over) for name in names]
    return tuple(replace(lane, disk=bench.run(lane, *CONNECT)["disk"]) for lane in lanes)


def order(bench: Bench, *names: str, **over: Any) -> GuestOrder:
    server_id, definition = defined_once(bench)
    lanes = connected(bench, server_id, *names)
    return GuestOrder(server_id=server_id, lanes=lanes, definition=definition, **over)


@pytest.mark.parametrize("running", [True, False])
def test_spawned_guest_has_the_disks_of_all_its_lanes(bench: Bench, running: bool) -> None:
    given = order(bench, "vda", "sdb", running=running)
    power = "running" if running else "shutdown"
    for _ in range(2):
        assert bench.order(Verb.GUEST_SPAWN, given) == {"power_state": power}
    live = {"vda": "vda", "sdb": "sdb"} if running else {"vda": None, "sdb": None}
    assert plugged(bench.store)[given.server_id] == {
        lane.volume_id: (live[lane.device_name or ""], lane.device_name) for lane in given.lanes
    }
    assert broken_invariants(bench.store) == []


def test_spawn_connects_every_volume_first_for_the_host_may_have_been_restarted(
    bench: Bench,
) -> None:
    given = order(bench, "vda")
    with bench.store.edit() as state:
        state["connected"] = {}
    bench.calls.clear()
    assert bench.order(Verb.GUEST_SPAWN, given) == {"power_state": "running"}
    assert bench.calls.index("brick.connect") < bench.calls.index("guests.spawn")


def test_spawn_without_a_definition_is_refused(bench: Bench) -> None:
    with pytest.raises(PortError) as raised:
        bench.order(Verb.GUEST_SPAWN, GuestOrder(server_id=bench.server()))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "no_definition")


def test_disk_carries_what_the_lane_and_the_connection_say(bench: Bench) -> None:
    server_id, definition = defined_once(bench)
    (lane,) = connected(bench, server_id, "sdb", multiattach=True, boot_index=0)
    [row] = bench.model.attachments_of(lane.volume_id)
    row.connection_info["access_mode"] = "ro"
    lane = replace(lane, serial="the-first-volume")
    given = GuestOrder(server_id=server_id, lanes=(lane,), definition=definition)
    bench.order(Verb.GUEST_SPAWN, given)
    xml = bench.store.read()["guests"][server_id]["persistent"]
    for said in ("<shareable", "<readonly", "the-first-volume", 'bus="scsi"', 'cache="none"'):
        assert said in xml


def test_power_verbs_tell_the_power_state(bench: Bench) -> None:
    given = GuestOrder(server_id=bench.server(), force=True)
    for verb, power in (
        (Verb.GUEST_PAUSE, "paused"),
        (Verb.GUEST_RESUME, "running"),
        (Verb.GUEST_STOP, "shutdown"),
        (Verb.GUEST_START, "running"),
    ):
        for _ in range(2):
            assert bench.order(verb, given) == {"power_state": power}


def test_guest_that_was_off_is_not_started(bench: Bench) -> None:
    given = GuestOrder(server_id=bench.server(PowerState.SHUTDOWN), running=False)
    assert bench.order(Verb.GUEST_START, given) == {"power_state": "shutdown"}


def test_a_start_never_opens_a_name_that_a_device_had_before(bench: Bench) -> None:
    """After a reboot of the host another volume may have it."""
    lane = bench.attached()
    given = GuestOrder(server_id=lane.server_id, lanes=(lane,), force=True)
    bench.order(Verb.GUEST_STOP, given)
    (path,) = bench.guests.disk(lane.server_id, lane.disk_serial).sources
    with bench.store.edit() as state:
        guest = state["guests"][lane.server_id]
        guest["persistent"] = guest["persistent"].replace(path, "/dev/dm-0")
    assert bench.guests.disk(lane.server_id, lane.disk_serial).sources == ("/dev/dm-0",)
    bench.order(Verb.GUEST_START, given)
    assert bench.guests.disk(lane.server_id, lane.disk_serial).sources == (path,)


def test_removed_guest_is_gone_and_removing_it_again_is_success(bench: Bench) -> None:
    given = GuestOrder(server_id=bench.server())
    for _ in range(2):
        assert bench.order(Verb.GUEST_REMOVE, given) == {}
    assert given.server_id not in bench.store.read()["guests"]


# --- migration ------------------------------------------------------------------------


def migrating(bench: Bench, there: Bench) -> GuestOrder:
    """A guest with a volume, that the destination has connected already."""
    lane = bench.attached()
    HOSTS["destination"] = there.store
    made = there.run(replace(lane, attachment_id=None), Verb.ATTACHMENT_CREATE)
    taken = replace(lane, attachment_id=made["attachment_id"])
    lane = replace(lane, disk=there.run(taken, Verb.VOLUME_CONNECT)["disk"])
    destination = {"host": "destination", "uri": f"{SCHEME}destination", "address": None}
    return GuestOrder(server_id=lane.server_id, lanes=(lane,), destination=destination)


@pytest.fixture
def there(bench: Bench) -> Bench:
    return Bench(host="destination", model=bench.model)


def test_guest_moves_with_the_disks_as_its_destination_sees_them(
    bench: Bench, there: Bench
) -> None:
    given = migrating(bench, there)
    for _ in range(2):
        assert bench.order(Verb.GUEST_MIGRATE, given) == {}
    assert given.server_id not in bench.store.read()["guests"]
    assert there.guests.power(given.server_id) is PowerState.RUNNING
    assert there.guests.disk(given.server_id, given.lanes[0].volume_id).live == "vdb"
    assert bench.order(Verb.GUEST_STAY, given) == {"passed": True}
    assert there.order(Verb.GUEST_FIND, given) == {"passed": True}


def test_guest_that_has_not_moved_stays(bench: Bench, there: Bench) -> None:
    given = migrating(bench, there)
    assert bench.order(Verb.GUEST_STAY, given) == {}
    assert there.order(Verb.GUEST_FIND, given) == {}
    assert bench.guests.power(given.server_id) is PowerState.RUNNING


def test_migration_without_the_destinations_disks_is_refused(bench: Bench, there: Bench) -> None:
    given = migrating(bench, there)
    set_power(bench.store, given.server_id, PowerState.RUNNING)
    blind = replace(given, lanes=tuple(replace(lane, disk=None) for lane in given.lanes))
    with pytest.raises(PortError) as raised:
        bench.order(Verb.GUEST_MIGRATE, blind)
    assert raised.value.code == "not_connected_there"
    with pytest.raises(PortError) as raised:
        bench.order(Verb.GUEST_MIGRATE, replace(given, destination=None))
    assert raised.value.code == "no_destination"


def test_a_destination_that_is_no_place_for_guests_is_refused_in_one_line(
    bench: Bench, there: Bench
) -> None:
    given = replace(migrating(bench, there), destination={"uri": "file:///etc\n" + "x" * 300})
    with pytest.raises(PortError) as raised:
        bench.order(Verb.GUEST_MIGRATE, given)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "bad_destination")
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 250


@pytest.mark.parametrize("verb", [Verb.GUEST_PAUSE, Verb.GUEST_RESUME])
def test_a_guest_that_is_off_has_nothing_to_hold_and_that_is_told(bench: Bench, verb: Verb) -> None:
    off = GuestOrder(server_id=bench.server(PowerState.SHUTDOWN))
    bench.server(PowerState.RUNNING)
    assert bench.order(verb, off) == {"power_state": "shutdown"}


def test_a_spawned_guest_lets_go_of_former_connections_and_of_no_others(bench: Bench) -> None:
    """Its volume's storage has moved since it was connected (LP 1741364)."""
    given = order(bench, "vda", "vdb")
    moved, same = (bench.records[lane.attachment_id or ""] for lane in given.lanes)
    [present] = moved.infos
    former = {**present, "target_lun": 77}
    bench.records[moved.attachment_id] = moved.having(former)
    gone: list[Any] = []
    vars(bench.brick)["disconnect"] = lambda info, *_: gone.append(info)
    bench.order(Verb.GUEST_SPAWN, given)
    assert [info["target_lun"] for info in gone] == [77]
    assert bench.records[moved.attachment_id].infos == (present,)
    assert bench.records[same.attachment_id].infos == same.infos


def test_a_new_attachment_that_cinder_shows_without_its_connection_is_asked_for_it(
    bench: Bench,
) -> None:
    """Cinder's answer may be from before the driver was asked."""
    lane = replace(bench.lane(), attachment_id=None)
    real = bench.cinder.attachment_create

    def create(*args: Any) -> Any:
        return replace(real(*args), connection_info={})

    vars(bench.cinder)["attachment_create"] = create
    bench.calls.clear()
    made = bench.run(lane, Verb.ATTACHMENT_CREATE)
    assert made["attachment_id"] in bench.model.attachments
    assert made["driver"] == "iscsi"
    assert "cinder.attachment" in bench.calls
