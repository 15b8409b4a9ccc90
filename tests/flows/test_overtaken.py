"""Every flow, by a process that is stopped at any point while another does its work.

A lease runs out when its holder is paused (SIGSTOP, a machine that is moved, a long pause of
the disk); the next one does what is due.  Then the first goes on as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from aggregates.attachment import Attachment
from aggregates.operation import Outcome
from handlers.requests.build import BootDisk
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, PortError
from ledger.core.dispatcher import LEASE_S
from tests.flows.scenarios import Scenario, every_scenario, turn_of
from tests.flows.test_every_flow import _undisturbed
from tests.memory import Crash, Trouble
from tests.tiers import every
from tests.world import CONTEXT, SERVER, World, events


class Paused(Trouble):
    """At one point the process is stopped, and `meanwhile` happens."""

    def __init__(self, number: int, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._number, self._meanwhile = number, meanwhile

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        mode = super().at(point, modes)
        if len(self.met) - 1 == self._number:
            self._meanwhile()
        return mode


def overtaken(world: World, operation_id: str) -> None:
    """Another dispatcher does all that the operation wants of the ledger now."""
    world.clock.wait(LEASE_S)
    world.service.on_dispatcher_lost(operation_id)
    world.clock.wait(LATE_S)
    world.service.carry_on(operation_id)


def paused_at(number: int, world: World, ask: Callable[[World], str]) -> str:
    operation_id = ask(world)
    world.trouble = Paused(number, lambda: overtaken(world, operation_id))
    return operation_id


@pytest.mark.deep
@every_scenario
def test_whoever_was_paused_leaves_nothing_behind(
    scenario: Scenario, record_property: Callable[[str, int], None]
) -> None:
    calm = _undisturbed(scenario)
    world = scenario.begin()
    operation_id = scenario.ask(world)
    world.trouble = Trouble()
    world.run(operation_id)
    points = every(6, list(enumerate(world.trouble.met)), turn_of(scenario))
    for number, point in points:
        world = scenario.begin()
        operation = world.run(paused_at(number, world, scenario.ask))
        what = f"{scenario.name} paused at {number} {point}: {operation.first_error}"
        assert operation.outcome is Outcome.COMPLETED, what
        assert world.summary() == calm.after, what
        assert world.wrong() == [], what
    record_property("cases", len(points))


def met(**more: Any) -> list[str]:
    """The points of an attach after it was asked for."""
    world = World(**more)
    operation_id = world.attach()
    world.trouble = Trouble()
    world.run(operation_id)
    return world.trouble.met


def test_what_was_made_beside_is_given_up_before_it_is_deleted() -> None:
    """So that nobody takes it over in between, and the history tells of it."""
    world = World()
    world.done(paused_at(met().index("cinder.attachment_create"), world, World.attach))
    [made] = events(world, Attachment.AttachmentCreated)
    [beside] = events(world, Attachment.Disowned)
    assert beside.originator_id != made.originator_id
    left = [row.id for row in world.cinder.attachments_of(world.volumes[0])]
    assert left == [str(made.originator_id)]


def test_what_another_takes_over_is_taken_back_by_nobody() -> None:
    """Paused after its request: whoever goes on finds what it made, and has it from then on."""
    world = World()
    world.done(paused_at(met().index("cinder.attachment_create") + 1, world, World.attach))
    [made] = events(world, Attachment.AttachmentCreated)
    assert made.adopted
    assert events(world, Attachment.Disowned) == []


def test_what_was_given_up_is_not_taken_over() -> None:
    """It was found, and is given up before the finding is recorded: another one is made."""

    def begun() -> tuple[World, Any, str]:
        world = World()
        stray = world.cinder.attachment_create(world.volumes[0], SERVER)
        return world, stray, world.attach()

    calm, _, operation_id = begun()
    calm.trouble = Trouble()
    calm.run(operation_id)
    world, stray, operation_id = begun()

    def give_up() -> None:
        attachment = world.store.load(Attachment, UUID(stray.id))
        of = {"volume_id": world.volumes[0], "server_id": SERVER}
        attachment.record(Attachment.Disowned, **of, why="made beside")
        world.store.save(attachment, context=CONTEXT)
        world.cinder.attachment_delete(stray.id)

    world.trouble = Paused(calm.trouble.met.index("cinder.attachments") + 1, give_up)
    world.done(operation_id)
    assert world.wrong() == []
    [made] = events(world, Attachment.AttachmentCreated)
    assert str(made.originator_id) != stray.id


def test_a_reservation_by_the_old_calls_is_taken_back_if_nobody_has_the_volume() -> None:
    """The attach is undone, and its volume free, when the paused process reserves it."""
    world = World(legacy=True)
    operation_id = world.attach()

    def undone() -> None:
        overtaken(world, operation_id)
        world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
        world.run(operation_id)

    world.trouble = Paused(met(legacy=True).index("cinder.reserve"), undone)
    world.service.advance(operation_id)
    assert world.cinder.volume(world.volumes[0]).status == "available"


def test_what_a_dispatcher_sent_that_died_beside_a_paused_one_is_found() -> None:
    """Storm 195: the paused one made another reservation, and was believed, as if it had been
    the only one to try; nobody looked for what the dead one's request was still to make.
    """
    world = World()
    operation_id = world.attach()
    cinder: Any = world.service._cinder
    create, late = cinder.attachment_create, []

    def died(*args: Any) -> Any:
        late.append(args)
        raise Crash

    def meanwhile() -> None:
        world.clock.wait(LEASE_S)
        world.service.on_dispatcher_lost(operation_id)
        world.clock.wait(LATE_S)
        cinder.attachment_create = died
        with pytest.raises(Crash):
            world.service.carry_on(operation_id)
        cinder.attachment_create = create

    world.trouble = Paused(met().index("cinder.attachment_create"), meanwhile)
    world.service.carry_on(operation_id)
    world.service.on_dispatcher_lost(operation_id)
    world.cinder.attachment_create(*late.pop())  # within LATE_S of that
    world.done(operation_id)
    assert [row.status for row in world.cinder.attachments_of(world.volumes[0])] == ["attached"]
    assert world.wrong() == []


def test_what_a_paused_process_asked_for_in_vain_is_found_when_it_comes_all_the_same() -> None:
    """Storm 255: the boot was undone and over when its request for a volume was sent, was given up
    for want of an answer, and was carried out after that; nobody looked for that volume any more.
    """
    world = World()
    operation_id = world.build(BootDisk(create={"size_gb": 1}, delete_on_termination=True))
    cinder: Any = world.service._cinder
    create, late = cinder.volume_create, []

    def given_up(*args: Any) -> Any:
        world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
        overtaken(world, operation_id)
        assert world.run(operation_id).outcome is Outcome.CANCELLED
        late.append(args)
        raise PortError(ErrorKind.UNKNOWN, "cinder_timeout", "no answer")

    def wait(seconds: float) -> None:
        world.clock.wait(seconds)
        if late:
            create(*late.pop())

    cinder.volume_create = given_up
    world.service._wait = wait
    world.service.carry_on(operation_id)
    assert not late, "it had time to come"
    assert [each.id for each in world.cinder.volumes.values() if each.id not in world.volumes] == []
    assert world.wrong() == []


def test_whoever_was_overtaken_leaves_the_operation_to_the_other() -> None:
    """It has no lease any more: going on, both would do each step from now on."""
    world = World()
    operation_id = world.attach()
    asked: list[str] = []

    def taken_over() -> None:
        world.clock.wait(LEASE_S)
        world.service.on_dispatcher_lost(operation_id)
        world.trouble = Trouble(met=asked)

    world.trouble = Paused(met().index("cinder.attachment_create"), taken_over)
    world.service.carry_on(operation_id)
    assert "cinder.attachment_create" not in asked
    assert world.operation(operation_id).history.of_step(0, "reserve", undo=False).attempts == 1


def test_what_is_taken_over_has_had_its_time_before_and_waits_in_no_step() -> None:
    """Threads that wait in steps are in everybody's way after a restart (decision 0020)."""
    world = World()
    operation_id = world.attach()
    world.service.on_dispatcher_lost(operation_id)
    began = world.clock.seconds
    world.service.carry_on(operation_id)
    assert len(events(world, Attachment.AttachmentCreated)) == 1
    assert world.clock.seconds == began
