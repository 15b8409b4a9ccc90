"""Every move, with one of its hosts fenced at every point: nothing runs by a fence that is too old.

What is under way at a fence may still bring a guest (handlers.engine.fences): whatever is asked
for then, no guest runs twice, and none on volumes that were given up.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aggregates import errors
from aggregates.operation import Operation, OperationState, Outcome
from tests.agreement import misrecorded
from tests.doubles.host_checks import plugged
from tests.flows.scenarios import SCENARIOS, Scenario, every_scenario, turn_of
from tests.flows.test_every_flow import _points_of_asking as points_of_asking
from tests.flows.test_every_flow import _undisturbed as undisturbed
from tests.memory import Crash, Trouble
from tests.regressions.worlds import host_returns
from tests.tiers import ALL, every
from tests.world import CONTEXT, HOST, OTHER, World


@dataclass
class Fencing(Trouble):
    """A host is fenced at a point (`number`), and everybody else goes on.

    Whoever fenced it saw to the guests that ran there then: `covered`.
    """

    world: World | None = None
    host: str = ""
    number: int = -1
    covered: set[tuple[str, str]] = field(default_factory=set)

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        world, due = self.world, len(self.met) == self.number
        super().at(point, modes)
        if due and world is not None:
            self.covered = {pair for pair in _live(world) if pair[1] == self.host}
            world.fence(self.host)
            if world.acting == self.host:  # it is at work no more
                raise Crash
        return None


#: What moves a guest: it may be on its way to, or from, the host that is fenced.
MOVES = {"live-migrate", "live-migrate-bare", "legacy-live-migrate", "resize", "unshelve"}
MOVING = [scenario for scenario in SCENARIOS if scenario.name in MOVES]


@pytest.mark.deep
@pytest.mark.parametrize("host", [HOST, OTHER])
@pytest.mark.parametrize("scenario", MOVING, ids=lambda s: s.name)
@pytest.mark.parametrize("then", ["evacuate", "delete"])
def test_no_guest_runs_twice_or_on_what_is_given_up_by_a_fence(
    scenario: Scenario, host: str, then: str
) -> None:
    """Fenced at every point of a move: nobody saw there then what it brings later.

    By default an evacuation follows one point, and a deletion the next.
    """
    calm, arrived = undisturbed(scenario), 0
    points = range(points_of_asking(scenario), len(calm.points))
    for number in every(4, points, int(then == "delete")):
        world = scenario.begin()
        trouble = world.trouble = Fencing(world=world, host=host, number=number)
        operation, where = world.run(scenario.ask(world)), calm.points[number]
        world.trouble, what = Trouble(), f"{scenario.name}, {host} fenced at {number} {where}"
        assert operation.state is OperationState.FINISHED, what
        arrived += (world.server_id, host) in _live(world) - trouble.covered
        elsewhere = OTHER if host == HOST else HOST
        try:
            asked = world.delete() if then == "delete" else world.act(then, destination=elsewhere)
            world.run(asked)
        except errors.DomainError:
            continue
        live = _live(world) - trouble.covered
        assert len(live) <= 1, what
        assert not {pair for pair in live if _lacks_attachments(world, *pair)}, what
    late = host == OTHER and "migrate" in scenario.name  # at one point, or two
    assert arrived or not (late and ALL), "it never got there late"


def _live(world: World) -> set[tuple[str, str]]:
    """Which guests run where, whatever anybody believes."""
    return {
        (server_id, name)
        for name, host in world.hosts.items()
        for server_id, guest in host.read()["guests"].items()
        if guest["live"] is not None
    }


def _lacks_attachments(world: World, server_id: str, host: str) -> bool:
    """Whether the guest there has volumes, and Cinder no attachment of its own there.

    The old calls leave Cinder with the host that had the volume first.
    """
    rows = [row for row in world.cinder.attachments.values() if row.instance == server_id]
    has = any(world.legacy or row.host == host for row in rows)
    return bool(plugged(world.hosts[host])[server_id]) and not has


#: No fence tells what a copy, or a conversion, had done when its host died; and a replacement has
#: its attachment in Cinder, for a guest that may run on.
_UNDECIDED = frozenset(
    {
        *("swap", "migrate-volume", "convert", "convert-stopped", "mixed-convert"),
        *("convert-resized", "mixed-convert-resized"),
        *("repair-lost", "repair-lost-encrypted"),
    }
)
#: The host had let go what the ledger was to forget: the next look finds that, too.
_FOUND_AGAIN = frozenset({"repair-lost-everywhere"})


@pytest.mark.deep
@every_scenario
def test_a_fence_ends_what_was_under_way_on_its_host(scenario: Scenario, tmp_path: Path) -> None:
    """At every point of the flow: nothing waits for the host, parks for it, or keeps a claim;
    and when the host is back, it has what the ledger says.
    """
    cases = list(enumerate(undisturbed(scenario).points))
    for first, point in every(6, cases, turn_of(scenario)):
        world = scenario.begin()
        was_wrong = world.wrong()  # which is for a repair to end
        operation = fenced_at(first, world, scenario)
        what = f"{scenario.name} at {first} {point}"
        if scenario.name in _UNDECIDED and operation.state is OperationState.PARKED:
            assert operation.history.records, "parked with nothing left"
            continue
        assert operation.state is OperationState.FINISHED, what
        assert not world.instance.claims, what
        assert not world.instance.faults or world.instance.never_built, what
        wrong = set(wrong_when_back(world, operation, tmp_path))
        assert wrong <= set(was_wrong) or (was_wrong and scenario.name in _FOUND_AGAIN), what


FORGETTING = next(scenario for scenario in SCENARIOS if scenario.name == "repair-server")


@pytest.mark.parametrize("nth", [0, 1], ids=["first volume", "second volume"])
def test_a_host_that_agreed_to_forget_a_server_and_died_lets_go_by_its_fence(
    nth: int, tmp_path: Path
) -> None:
    """As with a deletion; what it still has it releases by its own records when it is back."""
    points = undisturbed(FORGETTING).points
    releases = [number for number, point in enumerate(points) if point == "brick.disconnect"]
    world = FORGETTING.begin()
    operation = fenced_at(releases[nth], world, FORGETTING)
    assert (operation.outcome, world.instance.deleted) == (Outcome.COMPLETED, True)
    assert world.summary()["volumes"] == ["available", "available"]
    assert len(world.records[HOST]) == 2 - nth
    assert wrong_when_back(world, operation, tmp_path) == []
    assert world.records[HOST] == {}
    assert world.summary()["connected"][HOST] == 0


LETTING_GO = [scenario for scenario in SCENARIOS if re.search("detach|shelve", scenario.name)]


@pytest.mark.deep
@pytest.mark.parametrize("scenario", LETTING_GO, ids=lambda scenario: scenario.name)
def test_what_a_fenced_host_may_have_let_go_is_not_had_back(
    scenario: Scenario, tmp_path: Path
) -> None:
    """Somebody changed their mind when it had, and had not said so: nobody could know, and the
    ledger went on as if the guest still had its disk, or were still there.
    """
    cases = list(enumerate(undisturbed(scenario).points))
    for first, point in every(4, cases, turn_of(scenario)):
        world = scenario.begin()
        was_wrong = world.wrong()
        operation = fenced_at(first, world, scenario, unwind=True)
        what = f"{scenario.name} at {first} {point}"
        assert operation.state is OperationState.FINISHED, what
        assert set(wrong_when_back(world, operation, tmp_path)) <= set(was_wrong), what


def fenced_at(number: int, world: World, scenario: Scenario, *, unwind: bool = False) -> Operation:
    """The host dies at this point; perhaps somebody changes their mind; then it is fenced."""
    world.trouble = Trouble({number: "crash"})
    operation_id = scenario.ask(world)
    _stop_at_trouble(world, operation_id)
    world.trouble = Trouble()
    if unwind:
        with suppress(errors.OperatorActError):
            world.service.act(operation_id, "unwind", "changed my mind", CONTEXT)
    world.fence(HOST)
    world.service.on_dispatcher_lost(operation_id)  # if it was a dispatcher that died
    return world.run(operation_id)


def wrong_when_back(world: World, operation: Operation, tmp_path: Path) -> list[str]:
    """What is wrong when the host is let in again.  A start makes connections anew, so these are
    looked at after it; their records are there before it (decision 0081).
    """
    host_returns(world, HOST, tmp_path)
    for begun in world.running():  # what its guest was to hear
        world.done(str(begun))
    differs = list(misrecorded(world))
    if operation.history.overtaken_by_fence and world.instance.power_state == "shutdown":
        world.done(world.act("start"))
    elif operation.started and operation.started.flow == "snapshot":
        # The fence says that its guest was off, and it is started by what Cinder tells (0078).
        world.done(world.act("reboot"))
    return [*differs, *world.wrong()]


def _stop_at_trouble(world: World, operation_id: str) -> None:
    """Run until the planned crash, and do not start anything again."""
    planned = max(world.trouble.plan)
    for _ in range(400):
        operation = world.operation(operation_id)
        if len(world.trouble.met) > planned or operation.state is not OperationState.RUNNING:
            return
        try:
            if world.service.advance(operation_id) is not None:
                world.run_agent(operation_id)
        except Crash:
            world.boot()
            return
