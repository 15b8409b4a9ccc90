"""Presence beats absence (decision 0088): what another host shows is neither started, freed,
forgotten nor deleted, whichever flow, repair or person asks, and at whichever moment it turns up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import pytest

from aggregates import errors
from aggregates.base import Event
from aggregates.instance import Instance
from aggregates.operation import Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.engine.plan import Ask, plan_of
from handlers.flows import FLOWS
from handlers.requests.actions import ActOnServer
from handlers.requests.repair import RepairDrift
from handlers.results import presence
from handlers.results.presence import OthersShown, ShowingFinding, asks_of
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.messages import (
    SERVICE_VERSION,
    ErrorKind,
    Guest,
    PowerState,
    Registration,
)
from ledger.core.requests import Fleet
from ledger.log.application import ConflictError
from tests.commands import registered
from tests.flows import drifted
from tests.flows.drifted import finding
from tests.flows.drifts import DRIFTS
from tests.flows.scenarios import SCENARIOS, Scenario, every_scenario, turn_of
from tests.tiers import every
from tests.world import CONTEXT, HOST, NAMES, OTHER, SERVER, Broken, World, events

THIRD = "compute-3"
STRANGER = str(uuid5(NAMES, "a server of nobody"))
STRANGE = str(uuid5(NAMES, "a volume that no server has"))


def shows(
    world: World, server_id: str, *volumes: str, power: str = "running", host: str = THIRD
) -> None:
    """The agent of a third host, or another, shows a guest."""
    guest = Guest(
        server_id=server_id,
        name="found",
        power_state=PowerState(power),
        devices=tuple(f"vd{chr(ord('a') + n)}" for n in range(len(volumes))),
        volumes=tuple(volumes),
        project_id="p",
        user_id="u",
    )
    _register(world, guest, host=host)


def shows_nothing(world: World) -> None:
    _register(world)
    for server_id in (world.server_id, STRANGER):
        world.service.lost_guest(server_id, THIRD, CONTEXT)


def _register(world: World, *guests: Guest, host: str = THIRD) -> None:
    said = Registration(
        service_version=SERVICE_VERSION, capabilities={}, guests=guests, connections=()
    )
    registered(world.service, host, said, CONTEXT, world.open_ids)


def _asks(scenario: Scenario) -> tuple[Ask, str]:
    """What the flow of the scenario asks, and its name."""
    world = scenario.begin()
    started = world.operation(scenario.ask(world)).started
    assert started is not None
    return FLOWS[started.flow].asks, started.flow


def _volume_of(scenario: Scenario) -> str:
    """A volume that the scenario's plan works on; "": none."""
    world = scenario.begin()
    plan = plan_of(world.operation(scenario.ask(world)))
    return next((id_ for lane in plan.lanes for id_ in sorted(lane.volume_ids) if id_), "")


def _refused(scenario: Scenario, world: World) -> None:
    """Nothing is done, and the refusal names the host."""
    before, stored = world.summary(), len(world.store.log)
    with pytest.raises(errors.ShownElsewhereError, match=f"on host {THIRD}"):
        scenario.ask(world)
    assert (world.summary(), len(world.store.log)) == (before, stored)


@every_scenario
def test_a_guest_that_another_host_shows_is_started_freed_or_deleted_by_no_flow(
    scenario: Scenario,
) -> None:
    (asks, flow), world = _asks(scenario), scenario.begin()
    shows(world, world.server_id)
    # A server that is not yet cannot be shown; and what Cinder tells once waits (test_growth).
    if flow in {"boot", "grow", "grow_for_cinder"}:
        return
    if asks is Ask.NOTHING:
        world.done(scenario.ask(world))
        return
    _refused(scenario, world)
    shows_nothing(world)
    world.done(scenario.ask(world))


@every_scenario
def test_a_volume_that_another_guest_shows_is_given_and_freed_by_no_flow(
    scenario: Scenario,
) -> None:
    (asks, _), volume_id, world = _asks(scenario), _volume_of(scenario), scenario.begin()
    shows(world, STRANGER, volume_id or str(uuid5(NAMES, "another volume")))
    if asks is not Ask.VOLUMES or not volume_id:
        world.done(scenario.ask(world))
        return
    _refused(scenario, world)
    shows_nothing(world)
    world.done(scenario.ask(world))


@pytest.mark.deep
@every_scenario
@pytest.mark.parametrize("what", ["guest", "disk"])
def test_what_turns_up_at_any_durable_point_stops_what_would_start_or_free(
    what: str, scenario: Scenario
) -> None:
    """The guest elsewhere; or, apart from it, a disk of a volume in another guest."""
    volume_id = _volume_of(scenario)
    calm = scenario.begin()
    begun = len(calm.store.log)
    calm.run(scenario.ask(calm))
    stored = range(len(calm.store.log) - begun)
    for point in every(6, stored, turn_of(scenario)):
        if what == "guest":
            _turns_up(scenario, point, lambda world: shows(world, world.server_id))
        elif volume_id:
            _turns_up(scenario, point, lambda world: shows(world, STRANGER, volume_id))


def _turns_up(scenario: Scenario, at: int, turns_up: Callable[[World], None]) -> None:
    world = scenario.begin()
    begun = len(world.store.log)
    _after(world, lambda: len(world.store.log) > begun + at, lambda: turns_up(world))
    asked = scenario.ask(world)
    operation = world.run(asked) if _ends(world, asked) else world.operation(asked)
    seen: list[Event] = [*events(world, Instance.SeenElsewhere)]
    if asks_of(plan_of(operation)) is Ask.VOLUMES:
        seen += events(world, Volume.SeenInGuest)
    if not seen:  # it was over by then, or the flow may have brought it there
        return
    late = _begun_after(world, operation, seen[0])
    assert late == [], f"{scenario.name}: begun although another host shows it, at {at}"
    if operation.state is OperationState.PARKED:
        assert world.instance.vm_state in {"error", "deleted"}
    shows_nothing(world)


def _ends(world: World, operation_id: str) -> bool:
    """A patient flow waits for the guest to go: nothing else is to be waited for then."""
    return not plan_of(world.operation(operation_id)).patient


def _begun_after(world: World, operation: Operation, seen: Event) -> list[str]:
    """The steps that start or free something and were begun after that was known: of a run that
    began then, or whose host had to wait then for our word before the step.
    """
    plan, log = plan_of(operation), [event for event, _ in world.store.log]
    own = [event for event in log[log.index(seen) :] if event.originator_id == operation.id]
    new = {event.run for event in own if isinstance(event, Operation.RunStarted)}
    found, before = [], dict[int, str]()
    for event in own:
        if not isinstance(event, Operation.StepSucceeded):
            continue
        waited = "do" in plan.durable(before[event.run]) if event.run in before else False
        if (event.run in new or waited) and presence.is_asked(plan, [event.step], undo=event.undo):
            found.append(event.step)
        before[event.run] = event.step
    return found


def _after(world: World, when: Callable[[], bool], then: Callable[[], object]) -> None:
    """Once something is stored and `when` holds, do `then`, once."""
    save, done = world.store.save, list[bool]()

    def saving(*args: object, **more: object) -> int:
        position: int = save(*args, **more)  # type: ignore[arg-type]
        if not done and when():
            done.append(True)
            then()
        return position

    world.store.save = saving  # type: ignore[method-assign]


def refused_undo(world: World, **asked: Any) -> Operation:
    """An attach that failed, and whose undo deleted the attachment, and was refused the rest."""
    Broken(world, "guests.plug", ErrorKind.FINAL)
    deleting = Broken(world, "cinder.attachment_delete")

    def turns_up() -> bool:
        deleting.heal()
        shows(world, world.server_id)
        return False

    deleting.while_ = turns_up
    attach = world.run(world.attach(**asked))
    assert [left["step"] for left in attach.left] == ["bind", "reserve"]
    shows_nothing(world)
    return attach


@pytest.mark.parametrize("delete_on_termination", [False, True])
def test_a_server_is_deleted_with_the_mapping_that_a_refused_undo_has_left(
    delete_on_termination: bool,
) -> None:
    """Storm 20029: its attachment was deleted, so no lane of the deletion led to it.

    Whose attach has failed has the volume, and what is on it.
    """
    world = World()
    attach = refused_undo(world, delete_on_termination=delete_on_termination)
    world.done(world.delete())
    assert (world.operation(str(attach.id)).outcome, world.instance.devices) == ("cancelled", {})
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert world.wrong() == []


def test_what_a_host_shows_stands_while_it_is_silent_and_falls_with_its_fence() -> None:
    world = World()
    world.done(world.attach())
    shows(world, world.server_id, world.volumes[0])
    world.dead.add(THIRD)
    with pytest.raises(errors.ShownElsewhereError):
        world.detach()
    world.service.fence(THIRD, "lost power", "BMC says off", CONTEXT)
    world.done(world.detach())


def test_who_shows_something_is_read_once_for_a_request() -> None:
    world, asked = World(), []
    world.done(world.attach())

    def shown(*about: object) -> OthersShown:
        asked.append(about)
        return OthersShown()

    assert _acting(world, "reboot", {})(replace(world.fleet, shown=shown))
    assert asked == [(world.server_id, [world.volumes[0]])]


def test_an_open_finding_is_no_sign_once_its_host_is_fenced() -> None:
    world = World()
    world.done(world.attach())
    found = ShowingFinding(finding_id="f", drift_class="guest_elsewhere", hosts=(OTHER,))
    fleet = replace(world.fleet, shown=lambda *_: OthersShown(findings=[found]))
    with pytest.raises(errors.ShownElsewhereError, match="finding f"):
        _acting(world, "reboot", {})(fleet)
    world.fence(OTHER)
    assert _acting(world, "reboot", {})(fleet)


def test_a_host_that_came_back_and_shows_it_still_is_not_vouched_for_by_its_old_fence() -> None:
    world = World()
    world.done(world.attach())
    shows(world, world.server_id, world.volumes[0])
    world.service.fence(THIRD, "lost power", "BMC says off", CONTEXT)
    shows(world, world.server_id, world.volumes[0])
    with pytest.raises(errors.ShownElsewhereError):
        world.detach()


@pytest.mark.parametrize("flow", ["rebuild", "reboot", "shelve", "evacuate"])
def test_a_guest_that_its_host_has_lost_may_be_on_every_host_that_has_not_said_no(
    flow: str,
) -> None:
    world = World()
    world.done(world.attach())
    world.service.lost_guest(world.server_id, HOST, CONTEXT)
    if flow == "evacuate":
        world.fence(HOST)
    unsure = replace(world.fleet, unaccounted=lambda _: [THIRD])
    where = {"destination": OTHER} if flow == "evacuate" else {}
    ask = _acting(world, flow, where)
    with pytest.raises(errors.ShownElsewhereError, match="has not said"):
        ask(unsure)
    assert ask(world.fleet)


def _acting(world: World, flow: str, where: dict[str, str]) -> Callable[[Fleet], object]:
    request = ActOnServer(server_id=SERVER, flow=flow, **where)  # type: ignore[arg-type]
    return lambda fleet: world.requests.act(request, CONTEXT, fleet)


def test_a_volume_that_a_guest_showed_is_free_once_its_host_shows_it_no_more() -> None:
    """Whatever became of the guest meanwhile: storm 775."""
    world = World()
    world.done(world.attach())
    operation_id = world.act("live_migrate", destination=OTHER)
    shows(world, world.server_id, world.volumes[0], STRANGE, host=HOST)
    world.run(operation_id)
    assert world.store.load(Volume, UUID(STRANGE)).shown
    _register(world, host=HOST)
    assert not world.store.load(Volume, UUID(STRANGE)).shown


def test_an_operators_retry_asks_again() -> None:
    world = World()
    world.done(world.attach())
    _after(world, lambda: True, lambda: shows(world, world.server_id))  # its host is at it already
    operation_id = world.detach()
    assert world.run(operation_id).state is OperationState.PARKED
    for _ in range(2):
        world.service.act(operation_id, "retry", "looked", CONTEXT)
        assert world.run(operation_id).state is OperationState.PARKED
    assert world.cinder.volume(world.volumes[0]).status == "in-use"
    shows_nothing(world)
    world.service.act(operation_id, "retry", "removed it there", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.COMPLETED


def test_a_connector_is_deleted_by_nobody_while_another_host_shows_the_volume() -> None:
    """Cinder's list does not name the host of what is only `attaching` (item A3)."""
    world = drifted.attachment_unknown_beside(complete=False)
    request = RepairDrift(finding_id=str(finding(world).id), reason="test")
    shows(world, STRANGER, world.volumes[0])
    with pytest.raises(errors.ShownElsewhereError, match=THIRD):
        world.requests.repair(request, CONTEXT, world.fleet)


def test_a_guest_in_its_place_is_accounted_for_whoever_is_silent() -> None:
    world = World()
    world.done(world.attach())
    unsure = replace(world.fleet, unaccounted=lambda _: [THIRD])
    assert _acting(world, "reboot", {})(unsure)


def test_a_disk_that_a_server_is_to_have_is_no_sign() -> None:
    world = World(multiattach=True, volumes=1)
    world.done(world.attach())
    world.register(HOST)
    assert world.store.load(Volume, UUID(world.volumes[0])).shown == {}
    assert world.instance.elsewhere == {}


def test_a_sign_is_kept_once_and_goes_when_the_host_shows_it_no_more() -> None:
    world = World()
    world.done(world.attach())
    for _ in range(2):
        shows(world, world.server_id, world.volumes[0])
    assert len(events(world, Instance.SeenElsewhere)) == 1
    assert len(events(world, Volume.SeenInGuest)) == 1
    shows_nothing(world)
    assert world.instance.elsewhere == {}
    assert world.store.load(Volume, UUID(world.volumes[0])).shown == {}


def test_a_flow_says_that_it_asks_for_nobody_or_it_asks_for_all() -> None:
    quiet = {name for name, flow in FLOWS.items() if flow.asks is Ask.NOTHING}
    assert quiet == {
        *("grow", "grow_for_cinder", "snapshot", "delete_snapshot"),
        *("complete_attachment", "replace_attachment", "replace_reservation"),
        *("release_connection", "define_disk", "drop_secret", "forget_guest"),
    }


@pytest.mark.parametrize("flow", ["release_connection", "settle_volume"])
def test_nothing_is_repaired_while_a_disk_of_the_volume_may_be_other_data(flow: str) -> None:
    """Not even what asks nobody else (`DriftClass.stops_repairs`)."""
    name = next(name for name, drift in DRIFTS.items() if drift.flow == flow)
    world = DRIFTS[name].world()
    other = ShowingFinding(
        finding_id="f", drift_class="disk_source_differs", hosts=(), volume_id="v"
    )
    request = RepairDrift(finding_id=str(finding(world).id), reason="test")
    had = lambda server: drifted.hosts_of(world, server)  # noqa: E731
    unsure = replace(world.fleet, had=had, shown=lambda *_: OthersShown(findings=[other]))
    with pytest.raises(errors.RepairError, match="may be other data"):
        world.requests.repair(request, CONTEXT, unsure)
    world.done(world.requests.repair(request, CONTEXT, replace(world.fleet, had=had)).operation_id)


def test_a_refused_request_leaves_nothing_behind_and_can_be_repeated() -> None:
    world = World()
    shows(world, STRANGER, world.volumes[0])
    with pytest.raises(errors.ShownElsewhereError, match=STRANGER):
        world.attach()
    shows_nothing(world)
    assert world.run(world.attach()).outcome is Outcome.COMPLETED


def test_every_scenario_is_asked() -> None:
    """None is left out by its name."""
    flows = {_asks(scenario)[1] for scenario in SCENARIOS}
    assert flows >= {name for name, flow in FLOWS.items() if flow.asks is Ask.VOLUMES}


@pytest.mark.parametrize("how", ["registers", "changes", "loses"])
def test_a_list_that_comes_too_late_is_not_taken_at_a_second_try(how: str) -> None:
    """The first one meets what a newer list has changed."""
    world, tries = World(), list[int]()
    save = world.store.save

    def in_time() -> None:
        tries.append(1)
        if len(tries) > 1:
            raise TimeoutError

    def conflicts(*_: object, **__: object) -> int:
        world.store.save = save  # type: ignore[method-assign]
        raise ConflictError

    world.store.save = conflicts  # type: ignore[method-assign]
    said = Registration(service_version=SERVICE_VERSION, capabilities={}, guests=())
    off = Guest(server_id=world.server_id, name="vm", power_state=PowerState.SHUTDOWN)
    service, before = world.service, len(world.store.log)
    context = replace(CONTEXT, in_time=in_time)
    acts: dict[str, Callable[[], object]] = {
        "registers": lambda: service.register(HOST, replace(said, guests=(off,)), context),
        "changes": lambda: service.changed(HOST, Changes(epoch=0, guests=(off,), gone=()), context),
        "loses": lambda: service.lost_guest(world.server_id, HOST, context),
    }
    with pytest.raises(TimeoutError):
        acts[how]()
    assert len(world.store.log) == before


def test_what_a_forgotten_host_showed_after_its_fence_keeps_nothing() -> None:
    """Nobody could take it back, or fence the host again."""
    world = World(volumes=1)
    world.done(world.attach())
    shows_nothing(world)
    world.service.fence(THIRD, "no answer", "it is off", CONTEXT)
    shows(world, world.server_id, *world.volumes)
    with pytest.raises(errors.ShownElsewhereError, match=f"on host {THIRD}"):
        world.delete()
    world.service.change_host(THIRD, lambda host: host.delete("scrapped"), CONTEXT)
    world.done(world.delete())
    shows(world, world.server_id, *world.volumes)
    back = world.service.host(THIRD)
    assert (back.fenced, back.leftovers[0]) == (True, (world.server_id,)), "it is to be removed"
