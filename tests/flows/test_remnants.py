"""What skip and give-up say that they leave behind, before and after (decision 0054)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.operation import Operation, OperationState
from aggregates.remnant import Remnant, RemnantKind, RemnantState
from handlers.engine.verbs import VERBS, LedgerVerb
from host_agent.shared.contract.messages import ErrorKind, Verb
from ledger.core.service import Acted
from tests.memory import Trouble
from tests.regressions.worlds import broken_on, rows
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events

Told = list[tuple[str, str | None, str | None]]


def attached() -> World:
    world = World(encrypted=False)
    world.done(world.attach())
    world.trouble = Trouble()
    return world


def parked(world: World, operation_id: str) -> str:
    assert world.run(operation_id).state is OperationState.PARKED
    return operation_id


def told(acted: Acted) -> Told:
    """Of each: what, on which host (None: in Cinder), which attachment."""
    facts = [remnant.left for remnant in acted.remnants]
    return [(left.what, left.host, left.attachment_id) for left in facts if left]


def act(world: World, operation_id: str, name: str, **more: Any) -> Acted:
    return world.service.act(operation_id, name, "vouched for", CONTEXT, **more)


def both(world: World, operation_id: str, name: str, **more: Any) -> Told:
    """What a dry run says, which changes nothing, and the act itself says again."""
    stored = len(world.store.log)
    before = act(world, operation_id, name, dry_run=True, **more)
    assert (len(world.store.log), before.position) == (stored, 0)
    after = act(world, operation_id, name, **more)
    assert told(after) == told(before)
    left = events(world, Remnant.RemnantLeft)
    assert [event.originator_id for event in left] == [each.id for each in after.remnants]
    return told(after)


def test_a_disconnect_that_is_skipped_leaves_a_connection_on_its_host() -> None:
    world = attached()
    [row] = rows(world)
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    assert both(world, operation, "skip", step="disconnect") == [("connection", HOST, row.id)]


def test_a_deletion_that_is_skipped_leaves_the_attachment_in_cinder() -> None:
    world = attached()
    [row] = rows(world)
    Broken(world, "cinder.attachment_delete", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    assert both(world, operation, "skip", step="delete") == [("attachment", None, row.id)]
    assert [each.id for each in rows(world)] == [row.id]


def test_giving_up_leaves_all_that_is_left_to_do() -> None:
    world = attached()
    [row] = rows(world)
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    wanted = [("connection", HOST, row.id), ("attachment", None, row.id)]
    assert both(world, operation, "give_up") == wanted


def test_what_is_gone_already_is_not_left() -> None:
    """The disconnect was proven: only the attachment in Cinder is left."""
    world = attached()
    [row] = rows(world)
    Broken(world, "cinder.attachment_delete", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    assert both(world, operation, "give_up") == [("attachment", None, row.id)]


def test_a_rollback_that_is_skipped_leaves_the_disk_in_the_guest() -> None:
    world = World(encrypted=False)
    Broken(world, "cinder.attachment_complete", ErrorKind.FINAL)
    Broken(world, "guests.unplug", ErrorKind.FINAL)
    operation = parked(world, world.attach())
    [row] = rows(world)
    assert both(world, operation, "skip", step="plug") == [("disk", HOST, row.id)]


def test_a_source_that_is_skipped_is_named() -> None:
    world = attached()
    [row] = rows(world)
    broken_on(world, HOST, "brick.disconnect", ErrorKind.FINAL)
    operation = parked(world, world.act("live_migrate", destination=OTHER))
    assert both(world, operation, "skip", step="disconnect") == [("connection", HOST, row.id)]


def test_a_guest_that_is_not_removed_is_named() -> None:
    world = attached()
    Broken(world, "guests.remove", ErrorKind.FINAL)
    operation = parked(world, world.delete())
    said = both(world, operation, "skip", lane=-1, step="remove")
    assert said == [("guest", HOST, None)]
    [left] = events(world, Remnant.RemnantLeft)
    assert left.server_id == SERVER


def test_what_puts_nothing_there_leaves_nothing() -> None:
    world = attached()
    Broken(world, "guests.spawn", ErrorKind.FINAL)
    operation = parked(world, world.act("reboot"))
    assert both(world, operation, "skip", lane=-1, step="spawn") == []


def test_a_dry_run_is_refused_as_the_act_would_be() -> None:
    world = attached()
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    for dry_run in (True, False):
        with pytest.raises(errors.OperatorActError):
            act(world, operation, "skip", step="delete", dry_run=dry_run)


def test_it_is_open_until_somebody_has_seen_to_it_and_only_once() -> None:
    world = attached()
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = parked(world, world.detach())
    [remnant] = act(world, operation, "skip", step="disconnect").remnants

    def state() -> str:
        return str(world.store.load(Remnant, remnant.id).state)

    world.done(operation)
    assert state() == RemnantState.OPEN
    world.service.acknowledge(str(remnant.id), "flushed by hand", CONTEXT)
    assert state() == RemnantState.ACKNOWLEDGED
    with pytest.raises(errors.IllegalTransitionError):
        world.service.acknowledge(str(remnant.id), "again", CONTEXT)
    assert world.store.load(Operation, UUID(operation)).state is OperationState.FINISHED


#: Verbs that take something away, or end it: passing over one of them leaves it.
TAKING_AWAY = ("unplug", "abort", "disconnect", "delete", "tidy", "clear", "remove", "unmake")
#: Of the first only our own record would stay, which the operation's end sees to.  The second
#: leaves a merge that goes on: the guest reads the same, and Cinder's next deletion finds it done.
NOTHING_STAYS = {LedgerVerb.INSTANCE_DELETE, Verb.DISK_MERGE_ABORT}


def test_every_verb_that_takes_something_away_says_what_it_would_leave() -> None:
    verbs = {str(verb.value): verb for verb in (*Verb, *LedgerVerb)}
    away = {verb for name, verb in verbs.items() if name.endswith(TAKING_AWAY)} - NOTHING_STAYS
    assert {verb for verb in away if VERBS[verb].remnant is None} == set()
    assert {spec.remnant for spec in VERBS.values()} == {*RemnantKind, None}
