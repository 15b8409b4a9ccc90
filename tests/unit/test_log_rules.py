"""Each rule that a log alone can break is told, with the position and the event, when it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.attachment import Attachment
from aggregates.base import Aggregate, Event
from aggregates.finding import Finding
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.look import Look
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine import rules
from tests.replaying import Stored, broken_in
from tests.world import CONTEXT, HOST, OTHER, SERVER, World, events

Change = Callable[[World, Stored], int]


def after(log: Stored, id_: UUID, kind: type[Event], **fields: Any) -> Any:
    """An event that follows those that this log has of the aggregate."""
    version = sum(event.originator_id == id_ for event, _ in log)
    return kind(originator_id=id_, originator_version=version + 1, **fields)


def add(log: Stored, id_: UUID, kind: type[Event], **fields: Any) -> int:
    """Append it, in an append of its own; its position."""
    log.append((after(log, id_, kind, **fields), replace(CONTEXT)))
    return len(log)


def first(log: Stored, kind: type[Event], has: Callable[[Any], bool] = lambda _: True) -> int:
    """The place of the first such event."""
    return next(n for n, (event, _) in enumerate(log) if isinstance(event, kind) and has(event))


def attached(world: World) -> World:
    return world.done(world.attach())


def a_second_server(world: World, log: Stored) -> int:
    volume = UUID(world.volumes[0])
    return add(log, volume, Volume.Held, server_id=str(uuid4()), attachment_id=str(uuid4()))


def a_second_connection(world: World, log: Stored) -> int:
    volume_id, other = world.volumes[0], uuid4()
    add(log, other, Attachment.AttachmentCreated, volume_id=volume_id, server_id=SERVER)
    held = {"server_id": SERVER, "attachment_id": str(other)}
    add(log, UUID(volume_id), Volume.Held, **held)
    return add(log, other, Attachment.ConnectorUpdated, host=OTHER)


def a_disconnect_without_a_word(world: World, log: Stored) -> int:
    [attachment] = world.attachments()
    return add(log, attachment.id, Attachment.Disconnected)


def a_fence_that_does_not_stand(world: World, log: Stored) -> int:
    [attachment] = world.attachments()
    return add(log, attachment.id, Attachment.Disconnected, waived=f"host {HOST} is fenced")


def a_volume_deleted_in_use(world: World, log: Stored) -> int:
    volume = UUID(world.volumes[0])
    return add(log, volume, Volume.VolumeDeleted, server_id=SERVER, why="it goes with its server")


def a_result_of_a_former_epoch(world: World, log: Stored) -> int:
    at = first(log, Operation.StepSucceeded, lambda event: event.host == HOST)
    fence = {"epoch": 1, "reason": "lost power", "evidence": "seen"}
    log.insert(at, (after(log[:at], host_uuid(HOST), Host.Fenced, **fence), replace(CONTEXT)))
    return at + 2


def a_claim_that_stays(world: World, log: Stored) -> int:
    del log[first(log, Volume.ClaimReleased)]
    del log[first(log, Instance.ClaimReleased)]
    return first(log, Operation.OperationFinished) + 1


def an_event_twice(world: World, log: Stored) -> int:
    log.append((log[-1][0], replace(CONTEXT)))
    return len(log)


def an_attachment_of_nobody(world: World, log: Stored) -> int:
    about = {"volume_id": str(uuid4()), "server_id": str(uuid4())}
    return add(log, uuid4(), Attachment.AttachmentCreated, **about)


BROKEN: dict[str, tuple[str, Change]] = {
    "a second server": ("one_server", a_second_server),
    "a second connection": ("one_connection", a_second_connection),
    "no word of the host": ("proven_disconnect", a_disconnect_without_a_word),
    "no fence": ("proven_disconnect", a_fence_that_does_not_stand),
    "deleted in use": ("nothing_deleted_in_use", a_volume_deleted_in_use),
    "a former epoch": ("own_epoch", a_result_of_a_former_epoch),
    "a claim that stays": ("claims_released", a_claim_that_stays),
    "an event twice": ("in_order", an_event_twice),
    "an attachment of nobody": ("owned", an_attachment_of_nobody),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_breaks_a_rule_is_told_with_its_position(how: str) -> None:
    rule, change = BROKEN[how]
    world = attached(World())
    log = list(world.store.log)
    assert broken_in(log) == []
    position = change(world, log)
    told = next(each for each in broken_in(log) if each.rule == rule)
    assert told.position == position
    assert str(told).startswith(f"position {position}, "), told
    assert f": {rule}: " in str(told)


def test_a_look_that_is_stopped_and_goes_on_breaks_nothing_until_it_is_over() -> None:
    """Its events are stored one by one."""
    look, log = uuid4(), list(World().store.log)
    add(log, look, Look.LookBegun, scope={}, why="schedule")
    add(log, look, Look.LookStopped, reason="maintenance")
    add(log, look, Look.LookResumed, reason="it is over")
    add(log, look, Look.LookEnded, outcome="completed")
    assert broken_in(log) == []
    position = add(log, look, Look.LookStopped, reason="once more")
    assert [(each.rule, each.position) for each in broken_in(log)] == [("in_order", position)]


def test_a_guest_is_started_elsewhere_only_while_the_fence_stands() -> None:
    world = attached(World())
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))
    log = list(world.store.log)
    assert broken_in(log) == []
    at = first(log, Operation.RunStarted, lambda event: "spawn" in event.steps)
    unfenced = after(log[:at], host_uuid(HOST), Host.Unfenced, reason="it is back")
    log.insert(at, (unfenced, replace(CONTEXT)))
    assert ("standing_fence", at + 2) in [(each.rule, each.position) for each in broken_in(log)]


def test_an_operation_under_way_has_its_claim() -> None:
    world = World()
    operation_id = world.attach()
    log = list(world.store.log)
    assert broken_in(log) == []
    for id_, kind in ((UUID(SERVER), Instance), (UUID(world.volumes[0]), Volume)):
        add(log, id_, kind.ClaimReleased, claimant=operation_id)
    told = [each for each in broken_in(log) if each.rule == "claimed"]
    assert [(each.event, each.about) for each in told] == [("Operation", operation_id)]


def test_a_finding_answers_for_what_nobody_has() -> None:
    log: Stored = []
    id_, about = uuid4(), {"volume_id": str(uuid4()), "server_id": SERVER}
    add(log, id_, Attachment.AttachmentCreated, **about)
    assert [each.rule for each in broken_in(log)] == ["owned"]
    found: dict[str, Any] = {"drift_class": "attachment_unmapped", "severity": "warning"}
    found |= {"subject": "attachment", "key": str(id_), "host": None, "differs": {}}
    add(
        log,
        uuid4(),
        Finding.DriftFound,
        **(found | about | {"attachment_id": str(id_), "look_id": "", "at_position": 1}),
    )
    assert broken_in(log) == []


def test_what_is_over_is_forgotten() -> None:
    world = attached(World())
    world.done(world.detach())
    replay = rules.Replay()
    for position, (event, _) in enumerate(world.store.log, 1):
        list(replay.follow([(position, event)]))
    kinds: set[type[Aggregate]] = {type(each) for each in replay._known.values()}
    assert kinds == {Instance, Volume, Host}
    assert len(events(world, Operation.OperationFinished)) == 2
