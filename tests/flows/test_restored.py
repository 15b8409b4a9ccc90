"""A log restored from an older backup: of what was done after that, nothing is harmed (0109).

The world is of today, the log of then.  Until people have looked, whatever happens by itself, and
whatever is asked for, no guest, disk, connection or volume is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from aggregates import errors
from aggregates.base import Seen
from aggregates.host import Host, host_uuid
from aggregates.operation import ActiveRun, Operation, OperationState
from handlers.engine.plan import plan_of
from handlers.requests.actions import RULES, ActOnServer
from handlers.results.presence import OthersShown
from host_agent.shared.contract.messages import Report, StepResult
from host_agent.shared.contract.ports import PortError
from ledger.upkeep import restored
from tests.flows.scenarios import Scenario, every_scenario, turn_of
from tests.memory import MemoryStore, Trouble
from tests.regressions.worlds import host_returns, run_until
from tests.tiers import every
from tests.world import CONTEXT, HOST, OTHER, World, events

REASON = "disk of db1 lost"


@dataclass
class Backups(Trouble):
    """Nothing goes wrong; before each append the log is copied."""

    world: World | None = None
    taken: list[MemoryStore] = field(default_factory=list)

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        if point == "save" and self.world is not None:
            self.taken.append(self.world.store.copy(Trouble))
        return super().at(point, modes)


def put_back(world: World, backup: MemoryStore) -> None:
    """The database is an older one; all processes start anew."""
    world.store = backup.copy(lambda: world.trouble)
    world.trouble = Trouble()
    world.boot()


def mark(world: World) -> None:
    """As `db restored` does."""
    position = len(world.store.log)
    for name in world.hosts:
        restored.doubt(world.store, name, position, REASON, world.clock(), CONTEXT)
    for operation_id in world.running():
        restored.park(world.store, str(operation_id), world.clock(), CONTEXT)


def facts(world: World) -> dict[str, Any]:
    """What is outside the ledger."""
    cinder = [
        (volume.id, volume.status, sorted(map(str, world.cinder.attachments_of(volume.id))))
        for volume in world.cinder.listed_volumes()
    ]
    hosts = {name: copy.deepcopy(host.read()) for name, host in world.hosts.items()}
    return {"hosts": hosts, "cinder": cinder, "records": copy.deepcopy(world.records)}


def all_goes_on(world: World) -> None:
    """What happens by itself: agents come back, dispatchers and agents do what is due."""
    for name in world.hosts.keys() - world.dead:
        world.register(name)
    for operation_id in world.running():
        for name in world.hosts:
            world.service.on_host_fenced(str(operation_id), name)
    for operation_id in world.running():
        world.run(str(operation_id))


def wishes(world: World) -> Iterator[tuple[str, Callable[[], object]]]:
    """All that may be asked of the server."""
    yield "delete", world.delete
    for volume_id in world.volumes:
        yield "attach", partial(world.attach, volume_id)
        yield "detach", partial(world.detach, volume_id)
    where = OTHER if world.instance.host == HOST else HOST
    for flow in sorted(RULES.keys() - {"reimage"}):  # which has to be told an image
        yield flow, partial(world.act, flow, destination=where)


def acts(world: World) -> Iterator[tuple[str, Callable[[], object]]]:
    """All that operators may do about what is open, and has a host; of the rest the API alone knows
    whether any host is in doubt.
    """
    for id_ in map(str, world.open_operations()):
        plan = plan_of(world.operation(id_))
        for act in ("retry", "unwind", "give_up") if any(plan.hosts.values()) else ():
            yield act, partial(world.service.act, id_, act, "why", CONTEXT)


def _is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (errors.DomainError, PortError):
        return True
    return False


def _completed(scenario: Scenario) -> tuple[World, list[MemoryStore]]:
    world = scenario.begin()
    trouble = world.trouble = Backups(world=world)
    world.run(scenario.ask(world))
    return world, trouble.taken


@pytest.mark.deep
@every_scenario
def test_nothing_that_is_there_is_touched_before_people_have_looked(scenario: Scenario) -> None:
    """The flow came to its end after the backup, whatever it was at then."""
    world, backups = _completed(scenario)
    after = facts(world)
    for backup in every(3, backups, turn_of(scenario)):
        put_back(world, backup)
        mark(world)
        all_goes_on(world)
        assert world.running() == []
        for what, ask in [*wishes(world), *acts(world)]:
            # A deletion may wait until what is parked has ended.
            assert _is_refused(ask) or world.instance.deletion is not None, what
            assert facts(world) == after, what
        assert world.running() == []


def test_the_error_of_what_was_under_way_says_why_and_its_claims_stay() -> None:
    world = World()
    trouble = world.trouble = Backups(world=world)
    operation_id = world.attach()
    world.done(operation_id)
    put_back(world, trouble.taken[-1])
    mark(world)
    operation = world.operation(operation_id)
    assert operation.state is OperationState.PARKED
    assert {row["error"]["code"] for row in operation.left} == {"log_restored"}
    assert operation_id in world.instance.claims
    with pytest.raises(errors.HostUnvouchedError, match="host vouch compute-1"):
        world.service.act(operation_id, "retry", "looked at", CONTEXT)


def test_once_the_hosts_are_vouched_for_it_can_be_taken_up_where_it_was() -> None:
    world = World()
    world.trouble = trouble = Backups(world=world)
    operation_id = world.attach()
    backups = trouble.taken
    run_until(world, operation_id, lambda: len(backups) > 2)
    put_back(world, backups[-1])
    mark(world)
    for name in world.hosts:
        world.service.change_host(name, methodcaller("vouch", "looked at"), CONTEXT)
    world.service.act(operation_id, "retry", "looked at", CONTEXT)
    world.done(operation_id)
    assert world.wrong() == []


# --- fences -------------------------------------------------------------------------------------


def _fenced_then_back(tmp_path: Path) -> tuple[World, MemoryStore]:
    """A host was fenced at the backup, and has its server again since."""
    world = World()
    world.done(world.attach())
    world.fence(HOST)
    backup = world.store.copy(Trouble)
    host_returns(world, HOST, tmp_path)
    return world, backup


def test_a_fence_of_before_is_no_evidence(tmp_path: Path) -> None:
    world, backup = _fenced_then_back(tmp_path)
    put_back(world, backup)
    mark(world)
    with pytest.raises(errors.HostNotFencedError):
        world.act("evacuate", destination=OTHER)


def test_after_a_new_fence_all_other_hosts_have_to_be_vouched_for(tmp_path: Path) -> None:
    """The server may have come to any of them in what is lost."""
    world, backup = _fenced_then_back(tmp_path)
    put_back(world, backup)
    mark(world)
    world.fence(HOST)
    with pytest.raises(errors.HostUnvouchedError, match=OTHER):
        world.act("evacuate", destination=OTHER)
    world.service.change_host(OTHER, methodcaller("vouch", "it has no guest"), CONTEXT)
    request = ActOnServer(server_id=world.server_id, flow="evacuate", destination=OTHER)
    third = replace(world.fleet, shown=lambda *_: OthersShown(in_doubt=["compute-3"]))
    with pytest.raises(errors.HostUnvouchedError, match="compute-3"):
        world.requests.act(request, CONTEXT, third)
    world.done(world.act("evacuate", destination=OTHER))


def test_a_new_fence_takes_nothing_up_that_was_parked_by_the_restore() -> None:
    world = World(volumes=1)
    world.done(world.attach())
    trouble = world.trouble = Backups(world=world)
    operation_id = world.act("live_migrate", destination=OTHER)
    run_until(world, operation_id, lambda: len(trouble.taken) > 2)
    put_back(world, trouble.taken[-1])
    mark(world)
    for name in world.hosts:
        world.fence(name)
    assert world.operation(operation_id).state is OperationState.PARKED


def test_a_host_that_was_suspect_is_told_to_release_nothing(tmp_path: Path) -> None:
    """Its server was evacuated before the backup, and came back to it afterwards."""
    world = World()
    world.done(world.attach())
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))
    backup = world.store.copy(Trouble)
    host_returns(world, HOST, tmp_path)
    world.done(world.act("live_migrate", destination=HOST))
    now = facts(world)
    put_back(world, backup)
    assert world.store.load(Host, host_uuid(HOST)).suspect
    mark(world)
    host_returns(world, HOST, tmp_path)
    assert world.store.load(Host, host_uuid(HOST)).leftovers == ((), ())
    world.fence(HOST)
    host_returns(world, HOST, tmp_path)
    assert world.store.load(Host, host_uuid(HOST)).leftovers == ((), ())
    assert facts(world) == now


# --- epochs -------------------------------------------------------------------------------------


def test_the_epoch_is_above_any_that_was_handed_out_in_what_is_lost() -> None:
    world = World()
    backup = world.store.copy(Trouble)
    for _ in range(5):
        world.service.fence(HOST, "no answer", "BMC", CONTEXT)
    lost = world.store.load(Host, host_uuid(HOST)).epoch
    put_back(world, backup)
    mark(world)
    first = world.store.load(Host, host_uuid(HOST)).epoch
    assert first == world.clock() // 60 > lost
    mark(world)
    assert world.store.load(Host, host_uuid(HOST)).epoch == first + 1


def test_what_its_agent_reports_of_what_is_lost_is_refused() -> None:
    """The host's agent goes on with the run that it had at the backup; the epoch is over."""
    world = World()
    operation_id = world.attach()
    run_until(world, operation_id, lambda: _run_of(world, operation_id) is not None)
    run = _run_of(world, operation_id)
    assert run is not None
    done = StepResult(step=run.steps[0], took_ms=1)
    report = Report(operation_id=operation_id, run=run.number, epoch=run.epoch, results=(done,))
    mark(world)
    with pytest.raises(errors.StaleEpochError):
        world.service.report(HOST, report, CONTEXT)
    assert _run_of(world, operation_id) is None, "nothing waits for its agent"


def _run_of(world: World, operation_id: str) -> ActiveRun | None:
    """What the host is asked to do for the operation."""
    runs = world.operation(operation_id).history.active.values()
    return next((run for run in runs if run.host == HOST), None)


def test_what_a_killed_command_did_not_park_is_parked_by_the_service() -> None:
    """Its run is of an epoch that is over, as after a fence; no fence undoes it."""
    world = World()
    trouble = world.trouble = Backups(world=world)
    operation_id = world.attach()
    run_until(world, operation_id, lambda: len(trouble.taken) > 2)
    put_back(world, trouble.taken[-1])
    for name in world.hosts:
        restored.doubt(world.store, name, 1, REASON, world.clock(), CONTEXT)
        world.service.change_host(name, methodcaller("vouch", "too early"), CONTEXT)
    world.service.on_host_fenced(operation_id, HOST)
    operation = world.operation(operation_id)
    assert operation.state is OperationState.PARKED
    assert {row["error"]["code"] for row in operation.left} == {"log_restored"}
    assert not events(world, Operation.UnwindRequested)


def test_a_forgotten_host_that_is_novas_since_is_left_to_it() -> None:
    world = World()
    world.fence(OTHER)
    world.service.change_host(OTHER, lambda host: host.delete("scrapped"), CONTEXT)
    seen = Seen(origin="nova", after=None, before="2026-11-27T12:00:00.000+00:00").stored()
    world.service.change_host(
        OTHER, lambda host: host.record(Host.HostSeen, name=OTHER, seen=seen), CONTEXT
    )
    mark(world)
    assert [world.service.host(name).unvouched for name in (HOST, OTHER)] == [True, False]
