"""What is particular to volumes that grow in use: when their servers hear it (decision 0065)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from aggregates.instance import Instance
from aggregates.operation import Operation, OperationState
from aggregates.volume import Volume
from handlers.engine.verbs import VERBS
from handlers.requests import grow as growth
from handlers.results.adopted import hand_back
from host_agent.shared.contract.messages import SERVICE_VERSION, ErrorKind, PowerState, Verb
from host_agent.shared.contract.ports import GIB
from ledger.log.unit import Unit
from ledger.trial.cinder.model import work as cinder_work
from tests.doubles.host_checks import seen_sizes
from tests.flows.adopted import SEEN, adopted
from tests.flows.drifted import repair, secret_left
from tests.flows.test_presence import THIRD, shows, shows_nothing
from tests.growing import extend, size_behind
from tests.memory import Trouble
from tests.regressions.worlds import NEIGHBOUR, Street, host_returns
from tests.world import CONTEXT, HOST, OTHER, Broken, World, events


def attached(**more: Any) -> World:
    world = World(**more)
    return world.done(world.attach())


def guest_has(world: World, host: str = HOST) -> int:
    """Bytes of the volume, its head of LUKS included."""
    return seen_sizes(world.hosts[host])[world.server_id][world.volumes[0]]


def grow(world: World, *, waits: bool = False) -> None:
    """Cinder extends the volume by 1 GiB, and tells; somebody may have to wait.

    `waits`: as Cinder does, until it hears that the guest has it (3.71).
    """
    volume = world.cinder.volume(world.volumes[0])
    if waits:
        cinder_work.begin_waiting_extension(volume, volume.size + 1)
    else:
        size_behind(world, volume, volume.size + 1)
    world.requests.grow(world.server_id, volume.id, CONTEXT)


def flows(world: World) -> list[str]:
    return [event.flow for event in events(world, Operation.OperationStarted)]


@pytest.mark.parametrize("flow", ["live_migrate", "reboot", "pause"])
def test_what_is_told_while_an_operation_is_in_the_way_is_heard_at_its_end(flow: str) -> None:
    world = attached()
    where = {"destination": OTHER} if flow == "live_migrate" else {}
    world.act(flow, **where)
    grow(world)
    assert flows(world)[-1] == flow
    world.settle()
    assert flows(world)[-1] == "grow"
    [begun] = events(world, Instance.GrowthBegun)
    started = events(world, Operation.OperationStarted)[-1]
    assert begun.by_operation == str(started.originator_id)
    assert guest_has(world, OTHER if where else HOST) == 2 * GIB
    assert (world.instance.growth, world.wrong()) == ({}, [])


def test_cinder_that_waits_for_a_guest_hears_of_it_when_the_guest_did() -> None:
    world = attached(driver="nfs")
    world.act("reboot")
    grow(world, waits=True)
    world.settle()
    assert flows(world)[-1] == "grow_for_cinder"
    assert world.cinder.volume(world.volumes[0]).status == "in-use"
    assert (guest_has(world), world.wrong()) == (2 * GIB, [])


@pytest.mark.parametrize(
    ("mode", "outcome", "status"),
    [("final_after", "completed", "in-use"), ("final", "failed", "error_extending")],
)
def test_what_cinder_was_told_of_growth_and_did_not_answer_is_looked_up(
    mode: str, outcome: str, status: str
) -> None:
    """The guest has it: it has failed only if Cinder still waits, and is told so then."""
    world = attached(driver="rbd")
    calm = world.copy()
    calm.run(extend(calm, waits=True))
    told = calm.trouble.met.index("cinder.extend_volume_completion")
    world.trouble = Trouble({told: mode})
    assert world.run(extend(world, waits=True)).outcome == outcome
    assert world.cinder.volume(world.volumes[0]).status == status
    assert world.wrong() == []


def test_a_volume_that_grows_again_while_its_guest_hears_of_it_grows_again() -> None:
    world = attached()
    grow(world)
    grow(world)
    world.settle()
    assert flows(world)[-2:] == ["grow", "grow"]
    assert (guest_has(world), world.wrong()) == (3 * GIB, [])


def test_a_volume_that_grows_between_a_look_and_the_guest_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """QEMU gives an image the size that it gives the guest: here that is asked for too late."""
    world = attached(driver="rbd")
    operation_id = extend(world)
    guests, volume = world.ports["guests"], world.cinder.volume(world.volumes[0])
    real, late = guests.grow, [True]

    def while_it_grows(*args: Any, **options: Any) -> Any:
        if late.pop() if late else False:
            size_behind(world, volume, 3)
        return real(*args, **options)

    monkeypatch.setattr(guests, "grow", while_it_grows, raising=False)
    world.done(operation_id)
    assert (guest_has(world), volume.size, world.wrong()) == (3 * GIB, 3, [])


def test_what_was_told_goes_with_the_server_or_its_volume() -> None:
    for away in (World.delete, lambda world: world.act("shelve")):
        world = attached()
        away(world)
        grow(world)
        world.settle()
        assert "grow" not in flows(world)
        assert (world.instance.growth, world.wrong()) == ({}, [])


@pytest.fixture
def newer_agents(monkeypatch: pytest.MonkeyPatch) -> int:
    """The service version of agents that know the verb, which present ones do not."""
    needed = SERVICE_VERSION + 1
    spec = replace(VERBS[Verb.DISK_GROW], since=needed)
    monkeypatch.setitem(VERBS, Verb.DISK_GROW, spec)
    return needed


@pytest.mark.usefixtures("newer_agents")
def test_a_parked_growth_keeps_what_was_told_until_its_server_is_deleted() -> None:
    world = attached()
    world.run(extend(world))
    grow(world)
    assert list(world.instance.growth) == world.volumes
    world.done(world.delete())
    assert (world.instance.growth, world.wrong(), flows(world)[-1]) == ({}, [], "delete")


def test_an_agent_that_does_not_know_how_is_named_and_may_be_upgraded(newer_agents: int) -> None:
    world = attached()
    operation = world.run(extend(world))
    assert operation.state is OperationState.PARKED
    [left] = operation.left
    assert left["error"]["code"] == "agent_too_old"
    versions = f"service version {SERVICE_VERSION}, and disk_grow needs {newer_agents}: upgrade it"
    assert versions in left["error"]["message"]
    assert guest_has(world) == GIB
    world.register(HOST, service_version=newer_agents)
    world.service.act(str(operation.id), "retry", "upgraded", CONTEXT)
    world.done(str(operation.id))
    assert (guest_has(world), world.wrong()) == (2 * GIB, [])


def test_a_guest_of_a_fenced_host_has_the_size_where_it_is_started_next() -> None:
    world = attached()
    fenced_before_it_grows(world)
    world.done(world.act("evacuate", destination=OTHER))
    assert guest_has(world, OTHER) == 2 * GIB
    world.settle()
    assert (world.instance.growth, world.wrong()) == ({}, [])


@pytest.mark.parametrize("told", ["before", "meanwhile"])
def test_a_guest_that_outlives_a_fence_hears_it_when_its_host_is_back(
    told: str, tmp_path: Path
) -> None:
    """It was cut off, not switched off: nobody starts it anew, and Cinder tells nobody twice."""
    world = attached()
    if told == "before":
        fenced_before_it_grows(world)
    else:
        world.fence(HOST)
        grow(world)
        world.settle()
    world.register(HOST)
    assert list(world.instance.growth) == world.volumes
    assert (world.running(), guest_has(world)) == ([], GIB)
    host_returns(world, HOST, tmp_path)
    world.settle()
    assert (guest_has(world), world.instance.growth, world.wrong()) == (2 * GIB, {}, [])
    assert [event.waiting for event in events(world, Instance.GrowthAwaited)] == [False]
    assert flows(world)[-1] == "grow"
    assert events(world, Operation.OperationStarted)[-1].sender == CONTEXT.sender


@pytest.mark.parametrize("order", [(HOST, THIRD), (THIRD, HOST)])
def test_a_guest_that_another_host_shows_hears_it_where_it_belongs(order: tuple[str, str]) -> None:
    """No command would find it where it is (0088): it is back when both hosts say so."""
    world = attached()
    shows(world, world.server_id)
    world.service.lost_guest(world.server_id, HOST, CONTEXT)
    grow(world)
    say: dict[str, Callable[[], object]]
    say = {HOST: world.register, THIRD: lambda: shows_nothing(world)}
    for host in order:
        assert flows(world)[-1] == "attach"
        assert list(world.instance.growth) == world.volumes
        say[host]()
    world.settle()
    assert flows(world)[-1] == "grow"
    assert (guest_has(world), world.instance.growth, world.wrong()) == (2 * GIB, {}, [])


def test_a_guest_that_no_host_shows_hears_it_when_its_own_does() -> None:
    """Storm 7004: half a list hid it on the host to which somebody had moved it."""
    world = attached()
    shows(world, world.server_id)
    world.service.lost_guest(world.server_id, HOST, CONTEXT)
    world.service.lost_guest(world.server_id, THIRD, CONTEXT)
    grow(world)
    world.settle()
    assert (list(world.instance.growth), flows(world)[-1]) == (world.volumes, "attach")
    world.register()
    world.settle()
    assert flows(world)[-1] == "grow"
    assert (guest_has(world), world.instance.growth, world.wrong()) == (2 * GIB, {}, [])


@pytest.mark.parametrize("waits", [False, True])
def test_a_growth_does_not_complete_where_its_guest_is_not(*, waits: bool) -> None:
    """Somebody has just moved it: its host has not told yet that it is gone."""
    world = attached()
    with world.hosts[HOST].edit() as state:
        moved = state["guests"].pop(world.server_id)
    growth = extend(world, waits=waits)
    operation = world.run(growth)
    assert (operation.first_error or {}).get("code") == "guest_missing"
    with world.hosts[HOST].edit() as state:
        state["guests"][world.server_id] = moved
    if waits:
        assert operation.outcome == "failed"
        assert world.cinder.volume(world.volumes[0]).status == "error_extending"
        return
    assert operation.state is OperationState.PARKED
    world.service.act(growth, "retry", "it is back", CONTEXT)
    world.done(growth)
    assert (guest_has(world), world.wrong()) == (2 * GIB, [])


def test_what_was_told_goes_with_a_server_that_is_deleted_by_its_hosts_fence() -> None:
    world = attached()
    world.dead.add(HOST)
    operation_id = world.delete()
    grow(world)
    assert list(world.instance.growth) == world.volumes
    world.fence(HOST)
    world.done(operation_id)
    assert (world.instance.growth, flows(world)[-1]) == ({}, "delete")


def fenced_before_it_grows(world: World) -> None:
    world.dead.add(HOST)
    operation_id = extend(world)
    world.fence(HOST)
    assert world.run(operation_id).state is OperationState.FINISHED


def test_a_stopped_server_has_the_size_at_its_next_start() -> None:
    """Its host looks at the device again now: connecting what is connected does not."""
    world = attached(power_state=PowerState.SHUTDOWN)
    operation = world.run(extend(world))
    assert operation.outcome == "completed"
    world.done(world.act("start"))
    assert (guest_has(world), world.wrong()) == (2 * GIB, [])


def test_an_offloaded_server_has_the_size_when_it_is_back() -> None:
    world = attached()
    world.done(world.act("shelve"))
    world.cinder.volume(world.volumes[0]).size = 2
    assert world.requests.grow(world.server_id, world.volumes[0], CONTEXT) is None
    world.done(world.act("unshelve", destination=OTHER))
    assert (guest_has(world, OTHER), world.wrong()) == (2 * GIB, [])


def test_a_cinder_that_waits_for_a_file_of_a_guest_that_is_off_shows_an_error() -> None:
    world = attached(driver="rbd", power_state=PowerState.SHUTDOWN)
    operation = world.run(extend(world, waits=True))
    error = operation.first_error or {}
    assert (operation.outcome, error.get("code")) == ("failed", "guest_not_running")
    volume = world.cinder.volume(world.volumes[0])
    assert (volume.status, volume.size) == ("error_extending", 1)


def test_who_detaches_another_servers_share_is_not_in_the_way_of_growth() -> None:
    """A growth connects nothing: on a shared volume it claims no host (decision 0042)."""
    world = attached(multiattach=True)
    extend(world)
    [claim] = world.store.load(Volume, UUID(world.volumes[0])).claims.values()
    assert claim.hosts == frozenset()


def test_what_is_told_while_another_server_alone_has_the_volume_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repair of what the neighbour has left claims the volume for that one, and not for both."""
    world = Street(multiattach=True, encrypted=True)
    world.add_neighbour(OTHER)
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        world.done(world.attach())
        repair(secret_left(world, OTHER))
    tries, real = itertools.count(1), growth.grow

    def tried(*asked: Any) -> Operation:
        assert next(tries) <= 4, "who asks for it goes in circles"
        return real(*asked)

    monkeypatch.setattr(growth, "grow", tried)
    grow(world)
    assert (flows(world)[-1], list(world.instance.growth)) == ("drop_secret", world.volumes)
    world.settle()
    assert flows(world)[-1] == "grow"
    assert (guest_has(world), world.instance.growth, world.wrong()) == (2 * GIB, {}, [])


def test_what_is_told_before_the_host_of_an_adopted_server_has_shown_it_waits_for_that() -> None:
    world = adopted(attached(encrypted=False), agent=False)
    grow(world)
    assert list(world.instance.growth) == world.volumes
    world.register(OTHER)
    world.register(HOST)
    world.settle()
    assert flows(world)[-1] == "grow"
    assert (guest_has(world), world.instance.growth) == (2 * GIB, {})


def test_what_a_server_has_not_heard_that_is_handed_back_is_in_nobodys_way() -> None:
    world = adopted(attached(encrypted=False), agent=False)
    grow(world)
    unit = Unit(world.store)
    instance = unit.get(Instance, world.server_id)
    hand_back(instance, {}, "not yet", SEEN, unit)
    growth.begin_awaited(instance, unit)  # as the end of what has the volume with it does
    unit.save(CONTEXT)
    assert list(world.instance.growth) == world.volumes


def test_a_server_that_is_rebooted_beside_a_parked_growth_keeps_its_disk() -> None:
    """Storms 204, 620, 976: it was defined anew without the volume that the growth works on."""
    world = attached(encrypted=False)
    world.trouble = Trouble()
    broken = Broken(world, "guests.grow", ErrorKind.FINAL)
    growth = extend(world)
    assert world.run(growth).state is OperationState.PARKED
    world.done(world.act("reboot"))
    broken.heal()
    world.service.act(growth, "retry", "healed", CONTEXT)
    world.done(growth)
    assert (guest_has(world), world.wrong()) == (2 * GIB, [])
