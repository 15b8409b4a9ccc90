"""A fence vouches for what was on its host before it, and for nothing that came afterwards.

Decision 0038; a storm found the first of these (one guest on two hosts).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from uuid import uuid5

import pytest

from aggregates import errors
from aggregates.host import Host, host_uuid
from aggregates.operation import Operation, OperationState, Outcome
from handlers.requests.actions import ActOnServer
from handlers.requests.guards import Contact
from host_agent.shared.contract.messages import (
    SERVICE_VERSION,
    ErrorKind,
    PowerState,
    Registration,
)
from ledger.core.requests import Accepted
from tests.commands import registered
from tests.doubles.host_checks import plugged
from tests.memory import Crash
from tests.regressions.worlds import (
    NEIGHBOUR,
    Street,
    attached,
    broken_on,
    crash_at,
    guests_on,
    host_returns,
    migrate,
    rows,
    run_until,
)
from tests.world import CONTEXT, HOST, NAMES, OTHER, SERVER, World, events

EVACUATE = ActOnServer(server_id=SERVER, flow="evacuate", destination=HOST)
NOTHING = Registration(service_version=SERVICE_VERSION, capabilities={}, guests=())


def power_off(world: World, host: str) -> None:
    with world.hosts[host].edit() as state:
        state["connected"].clear()
        for guest in state["guests"].values():
            guest.update(live=None, power_state=PowerState.SHUTDOWN.value)


def fence(world: World, host: str) -> None:
    """Somebody looks at the host, sees to it that it is off, and says so."""
    power_off(world, host)
    world.fence(host)


def moved_to_a_fenced_host(volumes: int) -> tuple[World, str]:
    """The destination is fenced while the guest is on its way: whoever looked saw none there.

    It arrives all the same: hypervisors talk to each other, and know nothing of fences.
    """
    world = attached(volumes=volumes)
    operation_id = migrate(world)
    guests = world.agents[HOST]["guests"]
    real = guests.migrate

    def on_its_way(*args: object) -> None:
        world.fence(OTHER)
        real(*args)

    guests.migrate = on_its_way
    world.run(operation_id)
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert guests_on(world, HOST) == {}
    return world, operation_id


def code_of(operation: Operation) -> str | None:
    return (operation.first_error or {}).get("code")


def test_what_arrived_after_the_fence_is_not_evacuated_by_it() -> None:
    world, operation_id = moved_to_a_fenced_host(volumes=0)
    assert world.operation(operation_id).outcome is Outcome.COMPLETED
    assert world.instance.host == OTHER
    with pytest.raises(errors.FenceTooOldError, match=OTHER):
        world.requests.act(EVACUATE, CONTEXT, world.fleet)
    fence(world, OTHER)
    world.done(world.act("evacuate", destination=HOST))
    assert guests_on(world, HOST) == {SERVER: "running"}


def test_what_arrived_after_the_fence_keeps_its_attachments_when_it_is_deleted() -> None:
    """The guest runs: with its attachment gone Cinder would give the volume to somebody else."""
    world, _ = moved_to_a_fenced_host(volumes=1)
    operation_id = world.delete()
    parked = world.run(operation_id)
    assert (parked.state, code_of(parked)) == (OperationState.PARKED, "fence_too_old")
    assert OTHER in {row.host for row in rows(world)}
    fence(world, OTHER)
    world.done(operation_id)
    assert rows(world) == []


def test_a_guest_that_began_to_run_after_the_fence_is_not_evacuated_by_it() -> None:
    """Whoever starts it: the host shows it."""
    world = World(PowerState.SHUTDOWN, volumes=0)
    fence(world, HOST)
    with world.hosts[HOST].edit() as state:
        guest = state["guests"][SERVER]
        guest.update(live=guest["persistent"], power_state=PowerState.RUNNING.value)
    world.register(HOST)
    with pytest.raises(errors.FenceTooOldError, match=HOST):
        world.act("evacuate", destination=OTHER)
    fence(world, HOST)
    world.done(world.act("evacuate", destination=OTHER))


def test_each_fence_wants_its_own_run_of_the_program_before_an_evacuation() -> None:
    """Where the settings require one: what a run had shut may be open since."""
    world = World(volumes=0)
    wanted = replace(EVACUATE, destination=OTHER)

    def evacuated() -> Accepted:
        return world.requests.act(wanted, CONTEXT, replace(world.fleet, hook_required=True))

    def ran(epoch: int, code: int) -> None:
        world.service.change_host(HOST, methodcaller("ran_hook", epoch, code, "", 1e9), CONTEXT)

    with pytest.raises(errors.HostNotFencedError):
        evacuated()
    fence(world, HOST)
    ran(1, 0)
    fence(world, HOST)
    with pytest.raises(errors.HookAwaitedError, match="failed 0 times"):
        evacuated()
    ran(2, 1)
    with pytest.raises(errors.HookAwaitedError, match="failed 1 times"):
        evacuated()
    ran(2, 0)
    assert evacuated().operation_id


def test_a_fence_while_an_evacuation_is_asked_for_makes_it_wait_for_its_program() -> None:
    """The answer is of the log that the evacuation is written to, not of the one asked before."""
    world = World(volumes=0)
    fence(world, HOST)
    world.service.change_host(HOST, methodcaller("ran_hook", 1, 0, "", 1e9), CONTEXT)
    asked = list[str]()

    def contact(name: str) -> Contact:
        if not asked:
            fence(world, HOST)
        asked.append(name)
        return world.fleet.contact(name)

    fleet = replace(world.fleet, hook_required=True, contact=contact)
    with pytest.raises(errors.HookAwaitedError):
        world.requests.act(replace(EVACUATE, destination=OTHER), CONTEXT, fleet)


def evacuating(world: World) -> str:
    """An evacuation that was accepted since the program after the fence had ended well."""
    fence(world, HOST)
    world.service.change_host(HOST, methodcaller("ran_hook", 1, 0, "", 1e9), CONTEXT)
    fleet = replace(world.fleet, hook_required=True)
    return world.requests.act(replace(EVACUATE, destination=OTHER), CONTEXT, fleet).operation_id


def awaited(world: World) -> bool:
    """Whether a step has waited for the program after a fence."""
    return any(
        event.error["code"] == "hook_awaited" for event in events(world, Operation.StepRetried)
    )


def test_a_newer_fence_of_its_source_holds_an_evacuation_up_until_its_program_has_ended() -> None:
    world = attached()
    operation_id = evacuating(world)
    run_until(world, operation_id, lambda: len(rows(world)) == 2)
    fence(world, HOST)
    run_until(world, operation_id, lambda: awaited(world))
    assert guests_on(world, OTHER) == {}
    world.service.change_host(HOST, methodcaller("ran_hook", 2, 0, "", 1e9), CONTEXT)
    world.done(operation_id)
    assert guests_on(world, OTHER) == {SERVER: "running"}


def waiting_an_hour(world: World) -> str:
    """An evacuation whose source was fenced again, by when the program had long not ended well."""
    operation_id = evacuating(world)
    run_until(world, operation_id, lambda: len(rows(world)) == 2)
    fence(world, HOST)
    end = world.clock.seconds + 3600
    run_until(world, operation_id, lambda: world.clock.seconds > end)
    assert world.operation(operation_id).state is OperationState.RUNNING
    assert guests_on(world, OTHER) == {}
    return operation_id


def test_to_wait_for_a_program_uses_up_no_attempt_of_a_step() -> None:
    world = attached()
    operation_id = waiting_an_hour(world)
    world.service.change_host(HOST, methodcaller("ran_hook", 2, 0, "", 1e9), CONTEXT)
    broken = broken_on(world, OTHER, "brick.connect", ErrorKind.RETRYABLE)
    failed = partial(events, world, Operation.StepRetried)
    waits = len(failed())
    run_until(world, operation_id, lambda: len(failed()) == waits + 3)
    assert "hook_awaited" not in {event.error["code"] for event in failed()[waits:]}
    broken.heal()
    world.done(operation_id)
    assert guests_on(world, OTHER) == {SERVER: "running"}


def test_an_evacuation_that_waits_for_a_program_can_be_unwound() -> None:
    world = attached()
    before = [row.id for row in rows(world)]
    operation_id = waiting_an_hour(world)
    world.service.act(operation_id, "unwind", "the program never ends", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.CANCELLED
    assert (guests_on(world, OTHER), [row.id for row in rows(world)]) == ({}, before)


def test_a_destination_that_is_fenced_keeps_an_evacuation_until_its_program_has_ended() -> None:
    """The guest may just have been started there: nobody else is to start it before."""
    world = attached()
    operation_id = evacuating(world)
    guests = world.agents[OTHER]["guests"]
    real = guests.spawn

    def dies(*args: object, **how: object) -> None:
        real(*args, **how)
        raise Crash

    guests.spawn = dies
    with suppress(Crash):
        run_until(world, operation_id, lambda: False)
    world.fence(OTHER)
    run_until(world, operation_id, lambda: awaited(world))
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert {HOST, OTHER} == {row.host for row in rows(world)}
    assert world.instance.claims
    world.service.change_host(OTHER, methodcaller("ran_hook", 1, 0, "", 1e9), CONTEXT)
    assert world.run(operation_id).outcome is Outcome.CANCELLED
    assert [row.host for row in rows(world)] == [HOST]


def test_an_evacuation_ends_with_the_fence_it_rests_on() -> None:
    """A host that is let in again may still have its guest running."""
    world = attached()
    before = [row.id for row in rows(world)]
    fence(world, HOST)
    operation_id = world.act("evacuate", destination=OTHER)
    run_until(world, operation_id, lambda: len(rows(world)) == 2)
    world.service.change_host(HOST, methodcaller("unfence", "it was only slow"), CONTEXT)
    operation = world.run(operation_id)
    assert (operation.outcome, code_of(operation)) == (Outcome.FAILED, "fence_over")
    assert guests_on(world, OTHER) == {}
    assert [row.id for row in rows(world)] == before


def test_where_a_move_may_have_ended_only_a_fence_after_it_counts() -> None:
    """Nobody knows where the guest is.  Until its source is cleared it may still arrive."""
    world = attached()
    operation_id = migrate(world)
    broken_on(world, HOST, "guests.migrate")
    broken_on(world, HOST, "guests.stay", ErrorKind.FINAL)
    run_until(
        world, operation_id, lambda: bool(world.operation(operation_id).history.active.get(-1))
    )
    fence(world, OTHER)
    assert world.run(operation_id).state is OperationState.PARKED
    deletion = world.delete()
    parked = world.run(deletion)
    assert (parked.state, code_of(parked)) == (OperationState.PARKED, "fence_too_old")
    assert guests_on(world, HOST) == {}, "what could bring it is ended"
    assert OTHER in {row.host for row in rows(world)}
    fence(world, OTHER)
    world.done(deletion)
    assert rows(world) == []


def unfenced(world: World, host: str) -> None:
    """Let in again; its agent has not come yet."""
    world.service.change_host(host, methodcaller("unfence", "it was only slow"), CONTEXT)


def test_a_revert_starts_no_guest_before_a_host_that_was_unfenced_has_shown_its_own(
    tmp_path: Path,
) -> None:
    """The fence was the evidence that the guest is gone there, and it is over."""
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    world.fence(OTHER)
    broken = broken_on(world, HOST, "guests.start", ErrorKind.RETRYABLE)
    operation_id = world.act("revert_resize")
    run_until(world, operation_id, lambda: broken.calls > 0)
    unfenced(world, OTHER)
    broken.heal()
    for _ in range(20):
        world.clock.seconds += 60
        world.service.advance(operation_id)
    waits = world.operation(operation_id).history.records[-1, "start", False].error or {}
    assert waits["code"] == "host_awaited"
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert guests_on(world, HOST) == {SERVER: "shutdown"}
    host_returns(world, OTHER, tmp_path)
    world.done(operation_id)
    assert (guests_on(world, HOST), guests_on(world, OTHER)) == ({SERVER: "running"}, {})


# --- what was under way on the host ------------------------------------------------------------


def source_dies(world: World, operation_id: str, *, arrived: bool) -> partial[None]:
    """In the midst of a migration, before it can tell how that went; returns what it began."""
    guests = world.agents[HOST]["guests"]
    real, begun = guests.migrate, list[partial[None]]()

    def dies(*args: object) -> None:
        begun.append(partial(real, *args))
        if arrived:
            begun[0]()
        raise Crash

    guests.migrate = dies
    with suppress(Crash):
        run_until(world, operation_id, lambda: False)
    world.boot()
    world.dead.add(HOST)
    return begun[0]


def with_a_dead_source(*, arrived: bool) -> tuple[World, str]:
    world = attached()
    operation_id = migrate(world)
    source_dies(world, operation_id, arrived=arrived)
    return world, operation_id


@pytest.mark.parametrize("arrived", [True, False])
def test_the_destination_says_where_the_guest_of_a_fenced_source_is(arrived: bool) -> None:
    world, operation_id = with_a_dead_source(arrived=arrived)
    fence(world, HOST)
    operation = world.run(operation_id)
    assert operation.outcome is (Outcome.COMPLETED if arrived else Outcome.FAILED)
    assert world.instance.host == (OTHER if arrived else HOST)
    assert {row.host for row in rows(world)} == {world.instance.host}
    if not arrived:
        world.done(world.act("evacuate", destination=OTHER))
    assert guests_on(world, OTHER) == {SERVER: "running"}


def test_a_source_that_was_unfenced_says_itself_where_its_guest_is(tmp_path: Path) -> None:
    """It may still bring the guest: that none has come is true of the time of its fence alone."""
    world, operation_id = with_a_dead_source(arrived=False)
    world.fence(HOST)
    world.dead.add(OTHER)
    world.run(operation_id)
    unfenced(world, HOST)
    world.dead.discard(OTHER)
    world.run(operation_id)
    [run] = world.operation(operation_id).history.active.values()
    assert (run.host, run.verb) == (HOST, None)
    assert OTHER in {row.host for row in rows(world)}
    host_returns(world, HOST, tmp_path)
    assert world.run(operation_id).state is OperationState.FINISHED
    assert (guests_on(world, HOST), guests_on(world, OTHER)) == ({SERVER: "running"}, {})


def test_an_answer_that_is_of_an_earlier_fence_is_asked_for_again() -> None:
    """Between the two fences the source ran, and brought the guest."""
    world = attached()
    operation_id = migrate(world)
    goes_on = source_dies(world, operation_id, arrived=False)
    world.fence(HOST)
    guests = world.agents[OTHER]["guests"]
    real = guests.arrived

    def late(server_id: str) -> bool:
        guests.arrived = real
        answer: bool = real(server_id)
        unfenced(world, HOST)
        goes_on()
        fence(world, HOST)
        return answer

    guests.arrived = late
    operation = world.run(operation_id)
    assert (operation.outcome, world.instance.host) == (Outcome.COMPLETED, OTHER)
    assert (guests_on(world, HOST), guests_on(world, OTHER)) == ({}, {SERVER: "running"})


def test_a_fence_that_is_renewed_leaves_the_destinations_answer_as_it_is() -> None:
    """The source was fenced all the time; HA controllers say it again and again."""
    world, operation_id = with_a_dead_source(arrived=False)
    world.fence(HOST)
    guests, asked = world.agents[OTHER]["guests"], list[str]()
    real = guests.arrived

    def renewed(server_id: str) -> bool:
        asked.append(server_id)
        fence(world, HOST)
        answer: bool = real(server_id)
        return answer

    guests.arrived = renewed
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert (asked, guests_on(world, OTHER)) == ([SERVER], {})


def test_with_both_hosts_of_a_migration_dead_the_destination_is_fenced_last() -> None:
    world, operation_id = with_a_dead_source(arrived=True)
    fence(world, OTHER)
    fence(world, HOST)
    parked = world.run(operation_id)
    assert parked.state is OperationState.PARKED
    assert "fence_too_old" in {(each["error"] or {}).get("code") for each in parked.left}
    with pytest.raises(errors.OperatorActError, match=f"guest may be on host {OTHER}"):
        world.service.act(operation_id, "give_up", "never mind", CONTEXT)
    fence(world, OTHER)
    assert world.run(operation_id).state is OperationState.FINISHED
    assert world.instance.claims == {}


def test_a_reboot_that_a_fence_ends_has_failed_and_its_guest_is_to_run() -> None:
    world = attached()
    operation_id = world.act("reboot")
    run_until(world, operation_id, lambda: guests_on(world, HOST) == {SERVER: "shutdown"})
    fence(world, HOST)
    operation = world.run(operation_id)
    assert (operation.outcome, operation.state) == (Outcome.FAILED, OperationState.FINISHED)
    [finished] = [
        event
        for event in events(world, Operation.OperationFinished)
        if str(event.originator_id) == operation_id
    ]
    assert (finished.error or {})["code"] == "host_fenced"
    world.done(world.act("evacuate", destination=OTHER))
    assert guests_on(world, OTHER) == {SERVER: "running"}


@pytest.mark.parametrize("legacy", [False, True], ids=["new calls", "old calls"])
@pytest.mark.parametrize("then", ["start", "refresh", "detach"])
def test_a_refresh_that_a_fence_ends_leaves_its_record_and_whoever_comes_next_goes_by_it(
    then: str, legacy: bool, tmp_path: Path
) -> None:
    """Decision 0081.  It had disconnected what it was to connect anew, and the record was gone:
    of a volume that the ledger calls attached there, the host knew nothing.
    """
    world = attached(PowerState.SHUTDOWN, legacy=legacy)
    records = world.records[HOST]
    [attachment_id] = records
    asked = "cinder.initialize_connection" if legacy else "cinder.attachment_update"
    broken = broken_on(world, HOST, asked)
    operation_id = world.act("refresh")
    run_until(world, operation_id, lambda: not world.host.read()["connected"])
    fence(world, HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    broken.heal()
    host_returns(world, HOST, tmp_path)
    assert {id_: record.infos for id_, record in records.items()} == {attachment_id: ()}
    world.done(world.detach() if then == "detach" else world.act(then))
    assert world.wrong() == []


def test_what_was_parked_for_a_host_is_ended_by_its_fence() -> None:
    world = attached()
    broken_on(world, HOST, "brick.disconnect", ErrorKind.FINAL)
    operation_id = world.detach()
    assert world.run(operation_id).state is OperationState.PARKED
    fence(world, HOST)
    assert world.operation(operation_id).history.active, "the fence itself decides what is next"
    world.done(operation_id)
    assert rows(world) == []


def test_a_host_lets_go_of_what_is_decided_while_other_things_are_not(tmp_path: Path) -> None:
    """Told of it all together, it would be told for ever what it has let go of already."""
    world = Street()
    world.add_neighbour()
    fence(world, HOST)
    with world.meant(NEIGHBOUR):
        world.done(world.act("evacuate", destination=OTHER))
    world.dead.add(OTHER)
    operation_id = world.act("evacuate", destination=OTHER)
    world.run(operation_id)
    assert world.operation(operation_id).history.active, "it is under way"
    host_returns(world, HOST, tmp_path)
    host = world.store.load(Host, host_uuid(HOST))
    assert set(guests_on(world, HOST)) == {SERVER}, "of the other it is not decided"
    assert (host.suspect, host.leftovers) == (True, ((), ()))
    world.dead.discard(OTHER)
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    host_returns(world, HOST, tmp_path)
    assert guests_on(world, HOST) == {}
    assert not world.store.load(Host, host_uuid(HOST)).suspect


def test_a_host_whose_list_lacks_a_guest_is_not_let_in_before_its_evacuation_is_decided(
    tmp_path: Path,
) -> None:
    """It was cut off, so the guest runs on; a storm has found it so."""
    world = attached()
    world.fence(HOST)
    operation_id = world.act("evacuate", destination=OTHER)
    crash_at(world, operation_id, "guests.spawn")
    world.service.change_host(HOST, methodcaller("unfence", "it is back"), CONTEXT)
    told = registered(world.service, HOST, NOTHING, CONTEXT, world.open_ids)
    assert (told.host.suspect, told.host.leftovers, told.again) == (True, ((), ()), True)
    run_until(world, operation_id, lambda: world.instance.host == OTHER)
    assert guests_on(world, HOST) == guests_on(world, OTHER) == {SERVER: "running"}
    host_returns(world, HOST, tmp_path)
    assert guests_on(world, HOST) == {}
    assert not world.store.load(Host, host_uuid(HOST)).suspect


def test_a_host_that_has_changed_since_its_evacuations_were_read_has_to_register_again() -> None:
    """An evacuation that has begun since could start its guest a second time."""
    world = attached()
    world.fence(HOST)
    known = world.service.register(HOST, NOTHING, CONTEXT)
    world.act("evacuate", destination=OTHER)
    unfenced(world, HOST)
    with pytest.raises(errors.StaleEpochError):
        world.service.decide_leftovers(HOST, NOTHING, CONTEXT, known, [])
    assert world.store.load(Host, host_uuid(HOST)).suspect


def test_a_guest_that_a_move_may_have_brought_is_not_cleared_before_that_is_known(
    tmp_path: Path,
) -> None:
    world, operation_id = with_a_dead_source(arrived=True)
    world.fence(OTHER)
    fence(world, HOST)
    assert world.run(operation_id).state is OperationState.PARKED
    assert world.instance.host == HOST, "so the log has it"
    host_returns(world, OTHER, tmp_path)
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert world.store.load(Host, host_uuid(OTHER)).suspect


def test_a_resized_guest_is_not_cleared_from_its_source_before_the_resize_has_ended(
    tmp_path: Path,
) -> None:
    """It may yet be reverted to."""
    world = attached()
    operation_id = world.act("resize", destination=OTHER)
    run_until(world, operation_id, lambda: world.instance.host == OTHER)
    world.fence(HOST)
    assert world.operation(operation_id).state is OperationState.RUNNING
    host_returns(world, HOST, tmp_path)
    assert SERVER in guests_on(world, HOST)


def test_what_a_fence_takes_from_a_host_is_gone_on_with_at_once() -> None:
    world = attached()
    world.dead.add(HOST)
    operation_id = world.detach()
    world.run(operation_id)
    world.fence(HOST)
    [retried] = events(world, Operation.StepRetried)
    assert retried.retry_at == world.clock.seconds
    world.done(operation_id)


def test_a_record_that_the_log_does_not_know_keeps_no_disk(tmp_path: Path) -> None:
    """Somebody has put it there: agents record a connection when the log has its attachment."""
    world = attached()
    [(attachment_id, record)] = world.records[HOST].items()
    operation_id = world.detach()
    world.fence(HOST)
    world.done(operation_id)
    nobodys = str(uuid5(NAMES, "nobody's"))
    world.records[HOST][nobodys] = replace(record, attachment_id=nobodys)
    host_returns(world, HOST, tmp_path)
    assert attachment_id not in world.records[HOST]
    assert plugged(world.host)[SERVER] == {}
    assert not world.store.load(Host, host_uuid(HOST)).suspect
    assert list(world.records[HOST]) == [nobodys], "which a look finds"


def test_a_fence_that_is_over_ends_what_was_begun_before_it_and_nothing_since() -> None:
    """Whoever fenced the host did not get to the operation; the host was let in again since."""
    world = World()
    operation_id = world.attach()
    world.service.carry_on(operation_id)
    world.service.fence(HOST, "lost power", "BMC says off", CONTEXT)
    world.service.change_host(HOST, methodcaller("unfence", "repaired"), CONTEXT)
    assert world.service.on_host_fenced(operation_id, HOST) > 0
    history = world.operation(operation_id).history
    assert {(run.host, run.epoch) for run in history.active.values()} == {(HOST, 1)}
    assert world.service.on_host_fenced(operation_id, HOST) == 0, "its new run is its host's"
