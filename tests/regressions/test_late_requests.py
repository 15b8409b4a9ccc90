"""Requests that Cinder carries out when their sender has given up, or is dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid5

import pytest

from aggregates.attachment import Attachment
from aggregates.operation import Outcome
from handlers.requests.build import BootDisk
from host_agent.late_requests import FileMarks, let_land, sending
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.ports import LATE_S, PortError
from tests.memory import Clock
from tests.world import CONTEXT, HOST, NAMES, OTHER, SERVER, World, events


class Cinder:
    """Takes a request, and carries it out `after_s`, when nobody waits any more."""

    def __init__(self, world: World, call: str, after_s: float, kind: Any = ErrorKind.UNKNOWN):
        self.sent = 0
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._world, wait = world, world.clock.wait
        real = getattr(world.cinder, call)

        def late(*args: Any, **kwargs: Any) -> Any:
            if self.sent:
                return real(*args, **kwargs)
            self.sent += 1
            self._due.append((world.clock.seconds + after_s, lambda: real(*args, **kwargs)))
            raise PortError(kind, "cinder_timeout", "no answer in time")

        def waited(seconds: float) -> None:
            wait(seconds)
            self.land(world.clock.seconds)

        setattr(world.cinder, call, late)
        setattr(world.clock, "wait", waited)  # noqa: B010 - a method
        world.service._wait = waited

    def land(self, now: float = float("inf")) -> None:
        due, self._due = self._due, [each for each in self._due if each[0] > now]
        for at, request in due:
            if at <= now:
                request()


def rows(world: World) -> list[str]:
    return sorted(row.status for row in world.cinder.attachments_of(world.volumes[0]))


def migrated(world: World) -> str:
    return world.act("live_migrate", destination=OTHER)


def attached() -> World:
    world = World()
    return world.done(world.attach())


def test_the_agent_gives_a_late_attachment_time_before_it_makes_another() -> None:
    world = attached()
    cinder = Cinder(world, "attachment_create", LATE_S - 1)
    world.done(migrated(world))
    cinder.land()
    assert rows(world) == ["attached"]
    assert world.wrong() == []


def test_the_agent_gives_a_late_update_time_before_it_asks_again() -> None:
    world = World()
    cinder = Cinder(world, "attachment_update", LATE_S - 1)
    world.done(world.attach())
    cinder.land()
    assert rows(world) == ["attached"]


def test_the_service_gives_a_late_volume_time_before_it_makes_another() -> None:
    world = World(None, volumes=1)
    operation_id = world.build(BootDisk(create={"size_gb": 1}))
    cinder = Cinder(world, "add_volume", LATE_S - 1)
    world.done(operation_id)
    cinder.land()
    assert cinder.sent == 1
    assert len([row for row in world.cinder.listed_volumes() if MADE_FOR in row.metadata]) == 1


def test_what_an_agent_asked_for_before_it_died_is_given_time_by_its_next_life() -> None:
    world = World()
    operation_id = world.attach()
    world.service.carry_on(operation_id)
    cinder = Cinder(world, "attachment_update", LATE_S - 1, ErrorKind.FINAL)
    marks = world.agents[HOST]["sent"]
    mine = next(iter(world.cinder.attachments_of(world.volumes[0]))).id
    marks.add(mine)  # as a life leaves it that dies while it waits
    with pytest.raises(PortError):
        world.cinder.attachment_update(mine, {"host": HOST})
    world.boot()
    world.done(operation_id)
    cinder.land()
    assert rows(world) == ["attached"]


@pytest.mark.parametrize("power_state", [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_a_detach_ends_what_came_too_late_for_anybody(power_state: PowerState) -> None:
    world = World(power_state)
    cinder = Cinder(world, "attachment_create", 1000.0)
    world.done(world.attach())
    cinder.land()
    assert rows(world) == ["attached", "reserved"]
    world.done(world.detach())
    assert rows(world) == []
    assert world.cinder.volume(world.volumes[0]).status == "available"
    [late] = events(world, Attachment.Disowned)
    assert (late.volume_id, late.server_id) == (world.volumes[0], SERVER)


def test_a_detach_of_an_offloaded_server_ends_it_too() -> None:
    world = World()
    world.done(world.act("shelve"))
    cinder = Cinder(world, "attachment_create", 1000.0)
    world.done(world.attach())
    cinder.land()
    world.done(world.detach())
    assert rows(world) == []


def test_an_unwind_gives_a_lost_request_time_and_ends_what_it_made() -> None:
    world = World()
    Cinder(world, "attachment_create", 20.0)
    operation_id = world.attach()
    world.service.advance(operation_id)
    world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
    world.clock.wait(20.0 - LATE_S)
    assert world.run(operation_id).outcome is Outcome.CANCELLED
    assert rows(world) == []


@pytest.mark.parametrize("kind", [ErrorKind.FINAL, ErrorKind.RETRYABLE], ids=str)
def test_a_later_error_does_not_end_the_doubt_about_an_earlier_attempt(kind: ErrorKind) -> None:
    """Storm 20040: the look of the second attempt failed, and nobody waited for the first."""
    world = World()
    Cinder(world, "attachment_create", LATE_S - 1)
    operation_id = world.attach()
    world.service.advance(operation_id)
    world.service.advance(operation_id)  # nobody knows whether there is one
    port: Any = world.service._cinder
    real, looks = port.attachments, []

    def failing(*args: Any) -> Any:
        looks.append(args)
        if len(looks) == 1:
            raise PortError(kind, "injected", "the look failed")
        return real(*args)

    port.attachments = failing
    world.clock.wait(1.0)
    world.service.advance(operation_id)
    if kind is ErrorKind.RETRYABLE:
        world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
    world.run(operation_id)
    world.clock.wait(LATE_S)
    assert len(looks) > 1
    assert rows(world) == []


def test_a_deletion_ends_what_is_left_of_volumes_that_the_server_has_no_more() -> None:
    """It came when the attach had long been undone; whoever looks by volume looks in vain."""
    world = World()
    cinder = Cinder(world, "attachment_create", 1000.0, ErrorKind.FINAL)
    assert world.run(world.attach()).outcome is Outcome.FAILED
    cinder.land()
    assert rows(world) == ["reserved"]
    world.done(world.delete())
    assert rows(world) == []
    assert len(events(world, Attachment.Disowned)) == 1


def test_nothing_that_is_somebodys_goes_with_what_is_nobodys() -> None:
    """Another server's, one that is in use, one that the log knows of."""
    world = World(multiattach=True)
    world.done(world.attach())
    theirs = world.cinder.attachment_create(world.volumes[0], str(uuid5(NAMES, "other")))
    used = world.cinder.attachment_create(world.volumes[0], SERVER)
    world.cinder.attachment_complete(used.id)
    world.done(world.detach())
    left = {row.id for row in world.cinder.attachments_of(world.volumes[0])}
    assert left == {theirs.id, used.id}


def test_a_move_says_again_what_a_late_update_took_back() -> None:
    """The server has the volume; Cinder would refuse a second attachment while one attaches."""
    world = attached()
    [row] = world.cinder.attachments_of(world.volumes[0])
    world.cinder.attachment_update(row.id, {"host": HOST})
    assert rows(world) == ["attaching"]
    world.done(migrated(world))
    assert rows(world) == ["attached"]


def _sent_in_vain(marks: FileMarks, pair: str, kind: ErrorKind) -> None:
    with sending(marks, pair):
        assert list(marks) == [pair]
        raise PortError(kind, "x", "y")


def test_marks_outlive_the_agent_and_say_what_is_not_known(tmp_path: Any) -> None:
    clock, pair = Clock(), f"{uuid5(NAMES, 'a')}+{uuid5(NAMES, 'b')}"
    for kind, left in ((ErrorKind.UNKNOWN, 1), (ErrorKind.FINAL, 0), (ErrorKind.RETRYABLE, 0)):
        marks = FileMarks(tmp_path)
        with pytest.raises(PortError):
            _sent_in_vain(marks, pair, kind)
        assert len(FileMarks(tmp_path)) == left
        began = clock.seconds
        let_land(FileMarks(tmp_path), pair, clock)
        assert (clock.seconds - began, len(marks)) == (left * LATE_S, 0)
    with pytest.raises(ValueError, match="UUID"):
        FileMarks(tmp_path).add("../../etc/passwd")


def test_a_late_attachment_does_not_keep_a_connection_from_being_refreshed() -> None:
    """Cinder refuses an update while there are two (LP 1833736)."""
    world = attached()
    world.cinder.attachment_create(world.volumes[0], SERVER)
    world.done(world.act("refresh"))
    assert rows(world) == ["attached"]
    assert world.wrong() == []


def test_a_refresh_ends_what_came_too_late_and_has_its_hosts_connector() -> None:
    """Cinder refuses a second connector of one host: the refresh would park for ever."""
    world = attached()
    cinder = Cinder(world, "attachment_create", 10 * LATE_S)
    world.done(migrated(world))
    cinder.land()
    assert rows(world) == ["attached", "attaching"]
    world.done(world.act("refresh"))
    assert rows(world) == ["attached"]
    assert world.wrong() == []
