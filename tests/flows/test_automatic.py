"""Repairs that nobody asks for: off as shipped, few, and never again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from typing import Any
from uuid import uuid4

import pytest

from aggregates.finding import Finding
from aggregates.operation import Operation
from handlers.drift.automatic import RepairPolicy, SoFar, why_not
from ledger.log.unit import Unit
from ledger.reconcile.automatic import ACTOR, Automatic
from ledger.upkeep import restored
from tests.flows import drifted
from tests.flows.drifted import finding
from tests.world import CONTEXT, HOST, OTHER, World, alive, events

RESERVATIONS = RepairPolicy(classes=frozenset({"reservation_unknown", "volume_gone"}))
NONE_YET = SoFar(begun=0, begun_there=0, attachments_there=100)


def automatic(
    world: World, policy: RepairPolicy = RESERVATIONS, so_far: SoFar = NONE_YET
) -> Automatic:
    return Automatic(world.store, world.requests, lambda: world.fleet, lambda host: so_far, policy)


def test_as_shipped_nothing_is_repaired_by_itself() -> None:
    world = drifted.reservation_unknown()
    stored = len(world.store.log)
    assert automatic(world, RepairPolicy()).confirmed(str(finding(world).id)) is None
    assert len(world.store.log) == stored


def test_a_class_that_is_named_is_repaired_and_history_says_that_nobody_asked() -> None:
    world = drifted.reservation_unknown()
    operation_id = automatic(world).confirmed(str(finding(world).id))
    assert operation_id is not None
    assert events(world, Finding.RepairBegun)[-1].automatic
    started = events(world, Operation.OperationStarted)[-1]
    assert started.actor["name"] == ACTOR.name
    world.done(operation_id)
    assert world.wrong() == []


@pytest.mark.parametrize(
    ("policy", "so_far", "words"),
    [
        ({"classes": frozenset({"disk_missing"})}, {}, "not repaired automatically"),
        ({"per_hour_max": 3}, {"begun": 3}, "3 automatic repairs"),
        ({}, {"begun_there": 5}, "5 of 100"),
        ({}, {"begun_there": 1, "attachments_there": 3}, "too large a share"),
    ],
)
def test_what_a_person_would_notice_by_now_stops_it(
    policy: dict[str, Any], so_far: dict[str, int], words: str
) -> None:
    world = drifted.reservation_unknown()
    changed = replace(RESERVATIONS, **policy), replace(NONE_YET, **so_far)
    why = why_not(finding(world), *changed)
    assert why is not None
    assert words in why
    assert automatic(world, *changed).confirmed(str(finding(world).id)) is None
    assert finding(world).repairing is None


def test_after_a_restore_nothing_is_repaired_until_all_hosts_are_vouched_for() -> None:
    """By the log the host has a connection that nobody needs; it may be of what is lost."""
    world = drifted.connection_left()
    policy, id_ = RepairPolicy(classes=frozenset({"connection_left"})), str(finding(world).id)
    for name in world.hosts:
        restored.doubt(world.store, name, 1, "disk lost", world.clock(), CONTEXT)
    world.service.change_host(HOST, methodcaller("vouch", "looked at"), CONTEXT)
    assert automatic(world, policy).confirmed(id_) is None
    world.service.change_host(OTHER, methodcaller("vouch", "looked at"), CONTEXT)
    operation_id = automatic(world, policy).confirmed(id_)
    assert operation_id is not None
    world.done(operation_id)


def test_one_of_few_attachments_may_be_touched() -> None:
    few = replace(NONE_YET, attachments_there=3)
    assert why_not(finding(drifted.reservation_unknown()), RESERVATIONS, few) is None


def test_a_repair_that_failed_is_not_tried_again_until_something_changes() -> None:
    world = drifted.reservation_unknown()
    unit = Unit(world.store)
    known = unit.get(Finding, finding(world).id)
    known.record(Finding.RepairFailed, by_operation=str(uuid4()), why="it would not")
    unit.save(CONTEXT)
    assert "failed" in str(why_not(finding(world), RESERVATIONS, NONE_YET))


@pytest.mark.parametrize(
    "how",
    [
        lambda known: known.record(Finding.DriftIgnored, reason="known"),
        lambda known: known.record(
            Finding.RepairBegun, repair="drop_attachment", by_operation=str(uuid4()), reason="x"
        ),
    ],
    ids=["ignored", "under way"],
)
def test_what_somebody_sees_to_is_left_to_them(how: Callable[[Finding], None]) -> None:
    known = finding(drifted.reservation_unknown())
    how(known)
    assert why_not(known, RESERVATIONS, NONE_YET) is not None


def test_a_class_without_a_repair_is_left_to_people_whatever_the_settings_say() -> None:
    world = World()
    row = replace(drifted._volume_row(world, "x"), mappings=1, cinder=None)
    drifted.found(world, "volume_gone", row)
    assert automatic(world).confirmed(str(finding(world).id)) is None


@pytest.mark.parametrize(
    ("power", "left"), [("running", True), ("paused", True), ("shutdown", False)]
)
def test_no_guest_that_runs_is_powered_off_unasked(power: str, left: bool) -> None:
    known = finding(drifted.guest_of_deleted())
    known.differs = {**known.differs, "host": [[HOST, power]]}
    why = why_not(known, RepairPolicy(classes=frozenset({"guest_of_deleted"})), NONE_YET)
    assert (why is not None) is left


def test_a_refusal_leaves_it_to_people() -> None:
    world = drifted.attachment_unknown()
    policy = RepairPolicy(classes=frozenset({"attachment_unknown"}))
    silent = replace(world.fleet, contact=lambda host: replace(alive(host), alive=host != HOST))
    by_itself = Automatic(
        world.store, world.requests, lambda: silent, lambda host: NONE_YET, policy
    )
    assert by_itself.confirmed(str(finding(world).id)) is None


def test_what_was_begun_a_moment_ago_counts_for_the_host_that_it_was_on() -> None:
    world = drifted.reservation_unknown()
    by_itself = automatic(world)
    assert by_itself.confirmed(str(finding(world).id)) is not None
    assert [by_itself._known(host).begun_there for host in (HOST, OTHER)] == [1, 0]


def test_what_was_begun_a_moment_ago_counts_before_projections_show_it() -> None:
    world = drifted.reservation_unknown()
    by_itself = automatic(world, replace(RESERVATIONS, per_hour_max=1))
    operation_id = by_itself.confirmed(str(finding(world).id))
    assert operation_id is not None
    world.done(operation_id)
    made = drifted._raw(world, world.volumes[1])
    drifted._unknown("reservation_unknown", None)(world, made)
    assert by_itself.confirmed(str(finding(world).id)) is None
