"""What servers that share a volume may do with it at the same time (decision 0042; S3)."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from uuid import UUID, uuid5

import pytest

from aggregates import errors
from aggregates.operation import OperationState
from aggregates.volume import Volume, VolumeClaim
from handlers.drift.repairs import REPAIRS
from handlers.engine.claims import on_volume
from handlers.engine.plan import Place, plan_of
from handlers.flows import FLOWS
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import ErrorKind, GuestOrder
from tests.doubles.host_checks import connected_paths, plugged
from tests.memory import Crash, Trouble
from tests.regressions.worlds import NEIGHBOUR, Street, Watched, broken_on, rows
from tests.world import CONTEXT, HOST, OTHER, SERVER, World

WAYS = ["detach", "delete", "shelve"]


def shared(host: str = HOST) -> Street:
    """One multi-attach volume in the server on HOST and in its neighbour on `host`."""
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour(host)
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        world.done(world.attach())
    world.trouble = Trouble()
    return world


def leave(world: Street, way: str, server_id: str) -> str:
    with world.meant(server_id):
        if way == "shelve":
            return world.act(way)
        return world.detach() if way == "detach" else world.delete()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("patient", ["detach", "delete"])
def test_who_waits_for_a_dead_host_holds_no_other_server(patient: str, way: str) -> None:
    world = shared(OTHER)
    waits = leave(world, patient, NEIGHBOUR)
    world.dead.add(OTHER)
    world.run(waits)
    world.done(leave(world, way, SERVER))
    assert world.operation(waits).state is OperationState.RUNNING
    assert connected_paths(world.hosts[HOST]) == set()
    assert {row.instance for row in rows(world) if row.host} == {NEIGHBOUR}
    world.dead.clear()
    world.done(waits)
    assert connected_paths(world.hosts[OTHER]) == set()


@pytest.mark.parametrize("host", [HOST, OTHER])
@pytest.mark.parametrize("second", ["detach", "delete"])
@pytest.mark.parametrize("first", ["detach", "delete"])
def test_servers_that_share_a_volume_let_it_go_at_the_same_time(
    first: str, second: str, host: str
) -> None:
    world = shared(host)
    asked = [leave(world, first, SERVER), leave(world, second, NEIGHBOUR)]
    for operation_id in reversed(asked):
        world.done(operation_id)
    for state in world.hosts.values():
        assert connected_paths(state) == set()
    assert rows(world) == []
    assert not world.store.load(Volume, UUID(world.volumes[0])).claims


@pytest.mark.parametrize("crash", ["crash", "crash_after"])
@pytest.mark.parametrize("killed", [SERVER, NEIGHBOUR])
def test_of_two_that_let_go_the_last_disconnects_wherever_one_is_killed(
    killed: str, crash: str
) -> None:
    """Killed around each save: whoever has not proven its disconnect still counts as a user."""
    met = 0
    for at in range(1000):
        world = shared()
        asked = {server_id: leave(world, "detach", server_id) for server_id in (SERVER, NEIGHBOUR)}
        world.trouble = Trouble({at: crash})
        try:
            world.service.advance(asked[killed])
            world.run_agent(asked[killed], HOST)
        except Crash:
            met += 1
            world.boot()
        finished = len(world.trouble.met) <= at
        world.trouble = Trouble()
        other = NEIGHBOUR if killed == SERVER else SERVER
        world.done(asked[other])
        world.done(asked[killed])
        assert connected_paths(world.host) == set()
        assert rows(world) == []
        if finished:
            break
    assert met > 0


@pytest.mark.parametrize("seed", range(6))
def test_of_many_that_share_a_volume_the_last_of_each_host_disconnects(seed: int) -> None:
    """Seven servers on two hosts let it go in any order, all at once; now and then all die."""
    chance = random.Random(seed)
    world = Street(multiattach=True, encrypted=False)
    staying = [SERVER, *(str(uuid5(UUID(SERVER), f"neighbour {n}")) for n in range(6))]
    for server_id in staying[1:]:
        world.add_neighbour(chance.choice([HOST, OTHER]), server_id)
    for server_id in staying:
        with world.meant(server_id):
            world.done(world.attach())
    leaving: list[str] = []
    while staying or leaving:
        world.trouble = Trouble({chance.randrange(40): chance.choice(["crash", "crash_after"])})
        if staying and (not leaving or chance.random() < 0.3):
            leaving.append(leave(world, chance.choice(["detach", "delete"]), staying.pop()))
        _goes_on(world, chance.choice(leaving))
        leaving = [id_ for id_ in leaving if world.operation(id_).state is OperationState.RUNNING]
        for state in world.hosts.values():
            has_disk = any(plugged(state).values())
            assert connected_paths(state) or not has_disk, "a guest was cut off"
    assert rows(world) == []
    assert [connected_paths(state) for state in world.hosts.values()] == [set(), set()]


def _goes_on(world: Street, operation_id: str) -> None:
    """With what the ledger does next, and each host."""
    try:
        waits = world.service.advance(operation_id)
        if not world.run_agent(operation_id) and waits is not None and waits.until is not None:
            world.clock.seconds = max(world.clock.seconds, waits.until)
    except Crash:
        world.boot()


@pytest.mark.parametrize("way", ["detach", "delete"])
def test_a_volume_is_not_let_go_on_a_host_where_another_server_is_getting_it(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent dies when the guest has the disk, and nobody knows yet: who detaches now would
    find itself the last user, and cut the guest off.
    """
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour(HOST)
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        getting = world.attach()
    while world.service.advance(getting) is None:
        pass
    world.trouble = Trouble()
    plugged_in = Watched(world, HOST, "guests.plug")
    monkeypatch.setattr(world.service, "report", _dead)
    with pytest.raises(Crash):
        world.run_agent(getting, HOST)
    world.boot()
    assert plugged_in.seen == [NEIGHBOUR], "the guest has the disk, and the log does not say so"
    if way == "detach":
        with pytest.raises(errors.ClaimedError) as refusal:
            leave(world, way, SERVER)
        assert refusal.value.fields["operation_id"] == getting
        world.done(getting)
        world.done(leave(world, way, SERVER))
    else:
        leaving = leave(world, way, SERVER)
        assert not world.instance.deleted, "it waits (decision 0086)"
        world.done(getting).done(leaving)
    used = {p for disks in [plugged(world.host)[NEIGHBOUR]] for p in disks}
    assert len(connected_paths(world.host)) == len(used) == 1


def _dead(*_: object) -> None:
    raise Crash


def test_what_is_got_on_one_host_may_be_let_go_on_another() -> None:
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour(OTHER)
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        getting = world.attach()
    world.done(leave(world, "detach", SERVER)).done(getting)
    assert {row.instance for row in rows(world)} == {NEIGHBOUR}


def test_an_attach_that_is_parked_keeps_nobody_on_its_host_from_letting_go() -> None:
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour(HOST)
    world.done(world.attach())
    plug = broken_on(world, HOST, "guests.plug", ErrorKind.FINAL)
    unplug = broken_on(world, HOST, "guests.unplug", ErrorKind.FINAL)
    with world.meant(NEIGHBOUR):
        parked = world.attach()
    assert world.run(parked).state is OperationState.PARKED
    for broken in (plug, unplug):
        broken.heal()
    world.done(leave(world, "detach", SERVER))
    assert len(connected_paths(world.host)) == 1, "the parked one still counts as a user"
    world.service.act(parked, "retry", "mended", CONTEXT)
    world.run(parked)
    assert connected_paths(world.host) == set()
    assert rows(world) == []


def test_two_servers_do_not_reserve_a_volume_at_once() -> None:
    """Cinder would refuse the second, after its guest was stopped for it."""
    world = shared(OTHER)
    first = leave(world, "shelve", SERVER)
    with pytest.raises(errors.ClaimedError) as refusal:
        leave(world, "shelve", NEIGHBOUR)
    assert refusal.value.fields["operation_id"] == first


# --- the rule itself ------------------------------------------------------------------------


def claim(server_id: str, **more: object) -> VolumeClaim:
    return VolumeClaim(server_id=server_id, **{"shared": True, **more})  # type: ignore[arg-type]


TAKES = {"takes": frozenset("h"), "hosts": frozenset("h")}
LETS_GO = {"hosts": frozenset("h")}
ELSEWHERE = {"hosts": frozenset("i"), "takes": frozenset("i")}
ALONE = {
    "one server": (claim("a"), claim("a")),
    "not shared": (claim("a", shared=False), claim("b")),
    "both reserve": (claim("a", reserves=True), claim("b", reserves=True)),
    "one connects where one lets go": (claim("a", **TAKES), claim("b", **LETS_GO)),
    "both connect on one host": (claim("a", **TAKES), claim("b", **TAKES)),
}
TOGETHER = {
    "both let go": (claim("a", **LETS_GO), claim("b", **LETS_GO)),
    "on two hosts": (claim("a", **TAKES), claim("b", **ELSEWHERE)),
    "one reserves, one lets go": (claim("a", reserves=True), claim("b", **LETS_GO)),
}


@pytest.mark.parametrize("why", ALONE)
def test_claims_that_exclude_each_other_do_so_in_either_order(why: str) -> None:
    assert all(one.excludes(other) for one, other in permutations(ALONE[why]))


@pytest.mark.parametrize("why", TOGETHER)
def test_claims_that_go_together_do_so_in_either_order(why: str) -> None:
    assert not any(one.excludes(other) for one, other in permutations(TOGETHER[why]))


#: Where each flow connects anew, by place, and whether it reserves.
CLAIMED = {
    "attach": ({Place.HOST}, True),
    "attach_offloaded": (set[Place](), True),
    "detach": (set[Place](), False),
    "boot": ({Place.HOST}, True),
    "live_migrate": ({Place.DESTINATION}, True),
    "resize": ({Place.DESTINATION}, True),
    "confirm_resize": (set[Place](), False),
    "revert_resize": (set[Place](), False),
    "evacuate": ({Place.DESTINATION}, True),
    "shelve": (set[Place](), True),
    "unshelve": ({Place.DESTINATION}, True),
    "swap": ({Place.HOST}, True),
    "migrate_volume": ({Place.HOST}, True),
    "rebuild": (set[Place](), False),
    "reimage": (set[Place](), True),
    "refresh": (set[Place](), False),
    "grow": (set[Place](), False),
    "grow_for_cinder": (set[Place](), False),
    "snapshot": (set[Place](), False),
    "delete_snapshot": (set[Place](), False),
    "convert": (set[Place](), False),
    "convert_offloaded": (set[Place](), False),
    "convert_resized": (set[Place](), True),  # of the source's: by the host that has it already
    "delete": (set[Place](), False),
    # A repair takes no volume to a host; two of them reserve it anew.
    **{name: (set[Place](), False) for name in REPAIRS},
    "replace_attachment": (set[Place](), True),
    "replace_reservation": (set[Place](), True),
}


def test_every_flow_that_claims_volumes_says_here_what_it_claims() -> None:
    assert set(FLOWS) - {"start", "stop", "reboot", "pause", "unpause"} == set(CLAIMED)


@pytest.mark.parametrize("flow", CLAIMED)
def test_a_claim_follows_from_the_flows_table(flow: str) -> None:
    lane = Lane(
        server_id="s", volume_id="v", bdm_id="b", attachment_id="a", device_name="vdb",
        multiattach=True, host="holder", new=LaneSide(), image="i",
    )  # fmt: skip
    hosts: dict[Place, str | None] = {place: place.value for place in Place}
    of = [stage.of for stage in FLOWS[flow].stages if stage.of]
    lanes = tuple(replace(lane, host=hosts[place]) for place in of or [Place.HOLDER])
    claimed = on_volume(FLOWS[flow].expand(lanes, hosts, GuestOrder(server_id="s")), "v")
    takes, reserves = CLAIMED[flow]
    assert (claimed["takes"], claimed["reserves"]) == ({p.value for p in takes}, reserves)
    assert claimed["takes"] <= claimed["hosts"]
    assert claimed["shared"]


def test_a_swap_claims_each_of_its_volumes_for_what_it_does_with_it() -> None:
    world = World(volumes=2)
    old, new = world.volumes
    world.done(world.attach(old))
    operation = world.operation(world.swap(old, new))
    [lane] = operation.lanes
    assert (lane.host, lane.new and lane.new.host) == (HOST, HOST)
    plan = plan_of(operation)
    assert plan.guest == GuestOrder(server_id=SERVER)
    claimed = [on_volume(plan, volume_id) for volume_id in (old, new)]
    assert [each["reserves"] for each in claimed] == [False, True]
    assert [each["takes"] for each in claimed] == [set(), {HOST}]
    assert [each["hosts"] for each in claimed] == [{HOST}, {HOST}]


def test_a_volume_is_claimed_as_shared_by_its_own_lanes_alone() -> None:
    lane = Lane(
        server_id="s", volume_id="shared", bdm_id="b", attachment_id="a", device_name="vdb",
        multiattach=True, host=HOST,
    )  # fmt: skip
    lanes = (lane, replace(lane, volume_id="single", multiattach=False))
    plan = FLOWS["reboot"].expand(lanes, {Place.HOST: HOST}, GuestOrder(server_id="s"))
    assert on_volume(plan, "shared")["shared"]
    assert not on_volume(plan, "single")["shared"]
