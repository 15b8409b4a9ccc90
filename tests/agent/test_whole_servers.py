"""Commands for whole servers in the executor, and calling off what is under way."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent import watch
from host_agent.clock import Stopping
from host_agent.locks import names_for_guest
from host_agent.reporting import Verdict
from host_agent.shared.contract.messages import (
    ErrorKind,
    GuestOrder,
    PowerState,
    Report,
    StepResult,
    Verb,
)
from host_agent.shared.contract.ports import PortError, Watch
from host_agent.simulated.host_state import HOSTS, SCHEME
from host_agent.watch import RunWatch
from tests.agent.bench import (
    ATTACH,
    WAIT_S,
    Bench,
    Reports,
    command,
    eventually,
    lock_held_elsewhere,
    running_executor,
)

STOP = (Verb.GUEST_STOP,)
READY = (Verb.VOLUME_WAIT_READY,)


def codes(got: list[StepResult]) -> list[str | None]:
    return [result.error.code if result.error else None for result in got]


def test_command_for_a_server_waits_for_its_volumes_and_they_for_it(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    server_id = bench.server()
    first, last = (bench.lane(server_id, device_name=name) for name in ("vdb", "vdc"))
    other = bench.lane()
    reports.gate.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(first))
        reports.wait(1)
        executor.submit(command(GuestOrder(server_id=server_id, force=True), STOP))
        executor.submit(command(last, READY))
        executor.submit(command(other, READY))
        eventually(lambda: len(executor._running) == 2, "the other server's run")
        assert len(executor._queue) == 2
        reports.gate.set()
        reports.wait(len(ATTACH) + 3)
    got = reports.got
    of_server = [
        r.results[0].step for r in got if r.operation_id != got[1].operation_id or r is got[0]
    ]
    assert of_server[-2:] == ["guest_stop", "volume_wait_ready"]
    assert of_server.index("guest_stop") > of_server.index("attachment_complete")


def test_the_inventory_is_read_again_after_a_guest_changed(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    changed = threading.Event()
    given = command(GuestOrder(server_id=bench.server(), force=True), STOP)
    with running_executor(bench.world(), tmp_path, reports, guests_changed=changed.set) as executor:
        executor.submit(given)
        assert changed.wait(WAIT_S)
        (report,) = reports.wait(1)
    assert report.outputs == {"power_state": "shutdown"}


def test_later_steps_know_what_earlier_ones_have_told(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = replace(bench.lane(), attachment_id=None)
    verbs = (Verb.ATTACHMENT_CREATE, *ATTACH[1:])
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane, verbs))
        got = reports.wait(len(verbs))
    assert codes(got) == [None] * len(verbs)
    (row,) = bench.model.attachments_of(lane.volume_id)
    assert (row.id, row.status) == (got[0].outputs["attachment_id"], "attached")


def test_spawn_that_connects_holds_the_locks_of_its_volumes_in_order(bench: Bench) -> None:
    server_id = bench.server()
    lanes = tuple(bench.lane(server_id, multiattach=True) for _ in range(3))
    volumes = {lane.volume_id: bench.cinder.volume(lane.volume_id) for lane in lanes}
    names = names_for_guest(GuestOrder(server_id=server_id, lanes=lanes), volumes)
    shared = sorted(f"volume-{lane.volume_id}" for lane in lanes)
    assert names[:4] == [f"server-{server_id}", *shared]
    assert len(names) == len(set(names)), "a target that two volumes share is locked once"
    assert all(name.startswith("target-") for name in names[4:])


def test_spawn_takes_target_locks_for_it_connects(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    server_id = bench.server()
    lane = bench.lane(server_id, shared_targets=True, service_uuid="backend-3")
    disk = bench.run(lane, *ATTACH[:3])["disk"]
    (guest,) = bench.guests.inventory()
    bench.guests.remove(server_id)
    lane = replace(lane, disk=disk)
    order = GuestOrder(server_id=server_id, lanes=(lane,), definition=guest.definition)
    seen: list[bool] = []

    def watching(report: Report) -> Verdict:
        seen.append((tmp_path / "target-backend-3.lock").exists())
        return reports(report)

    with running_executor(bench.world(), tmp_path, watching) as executor:
        executor.submit(command(order, (Verb.GUEST_SPAWN,)))
        assert codes(reports.wait(1)) == [None]
    assert seen == [True]


@pytest.mark.parametrize(
    ("verb", "running", "connects"),
    [
        (Verb.GUEST_SPAWN, False, True),
        (Verb.GUEST_START, True, True),
        (Verb.GUEST_START, False, False),
        (Verb.GUEST_STOP, True, False),
    ],
)
def test_only_what_connects_volumes_waits_for_the_names_of_their_targets(
    bench: Bench, reports: Reports, tmp_path: Path, verb: Verb, running: bool, connects: bool
) -> None:
    """A volume may get its service_uuid late, and only Cinder's word names the lock."""
    server_id = bench.server()
    lane = bench.lane(server_id, shared_targets=True, service_uuid=None)
    guest = GuestOrder(server_id=server_id, lanes=(lane,), running=running)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(guest, (verb,)))
        [result] = reports.wait(1)
    assert ("cinder.volume" in bench.calls) is connects
    if connects:
        assert codes([result]) == ["volume_not_ready"]


# --- cancel -------------------------------------------------------------------------------


def cancelling(given: Any) -> Any:
    """The same command, handed out again at a later position."""
    return replace(given, cancel=True, position=given.position + 10**6)


def test_run_under_way_is_told_to_end_and_is_not_run_again(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    bench.model.volume(lane.volume_id).status = "creating"
    given = command(lane, READY)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(given)
        eventually(lambda: "cinder.volume" in bench.calls, "the wait to begin")
        assert not executor.submit(cancelling(given))
        (report,) = reports.wait(1)
        eventually(lambda: not executor._running, "the run to end")
        assert not executor.submit(cancelling(given)), "it has ended"
    assert report.error is not None
    assert (report.error.kind, report.error.code) == (ErrorKind.FINAL, "cancelled")
    assert len(reports.got) == 1


def test_queued_command_that_is_called_off_does_nothing(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    given = command(lane)
    reports.gate.clear()
    with running_executor(bench.world(), tmp_path, reports, workers=1) as executor:
        executor.submit(command(bench.lane(), READY))
        reports.wait(1)
        executor.submit(given)
        bench.calls.clear()
        assert not executor.submit(cancelling(given))
        reports.gate.set()
        got = reports.wait(2)
    assert (reports.got[1].operation_id, got[1].step) == (given.operation_id, "attachment_update")
    assert codes(got) == [None, "cancelled"]
    assert bench.calls == []
    assert len(reports.got) == 2


def test_run_that_is_called_off_while_it_waits_for_its_locks_does_nothing(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    given = command(lane)
    with (
        running_executor(bench.world(), tmp_path, reports) as executor,
        lock_held_elsewhere(tmp_path, f"server-{lane.server_id}-{lane.volume_id}") as holder,
    ):
        executor.submit(given)
        eventually(lambda: executor._running, "the run to wait")
        bench.calls.clear()
        assert not executor.submit(cancelling(given))
        holder.end()
        assert codes(reports.wait(1)) == ["cancelled"]
    assert "cinder.attachment_update" not in bench.calls
    assert len(reports.got) == 1


def test_unknown_command_that_comes_called_off_does_nothing(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    bench.calls.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        assert executor.submit(cancelling(command(lane)))
        assert codes(reports.wait(1)) == ["cancelled"]
    assert bench.calls == []


class Movement:
    """Stands in for the hypervisor's migration: goes on until somebody calls it off."""

    def __init__(self, moved: bool = False) -> None:
        self.asked = threading.Event()
        self.moved = moved

    def __call__(self, server_id: str, destination: Any, disks: Any, watch: Watch) -> None:
        del server_id, destination, disks
        self.asked.set()
        watch.progress(1, 10)
        watch.progress(2, 10)
        if self.moved:
            return
        eventually(watch.cancelled, "somebody to call it off")
        raise PortError(ErrorKind.FINAL, "cancelled", "called off")


def order(bench: Bench) -> GuestOrder:
    return GuestOrder(server_id=bench.server(), destination={"host": "x", "uri": "simulated:x"})


MIGRATE = (Verb.GUEST_MIGRATE,)


def test_migration_under_way_is_called_off(bench: Bench, reports: Reports, tmp_path: Path) -> None:
    migration = Movement()
    bench.guests.migrate = migration  # type: ignore[method-assign]
    given = command(order(bench), MIGRATE)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(given)
        assert migration.asked.wait(WAIT_S)
        executor.submit(cancelling(given))
        assert codes(reports.wait(1)) == ["cancelled"]


def test_migration_of_an_agent_before_us_is_looked_at_although_called_off(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    """It may go on in libvirt, or have arrived: only a look tells."""
    bench.guests.migrate = Movement(moved=True)  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(cancelling(command(order(bench), MIGRATE)))
        assert codes(reports.wait(1)) == [None]


def test_called_off_before_it_began_a_migration_leaves_the_guest(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    HOSTS["nowhere"] = Bench().store
    there = {"host": "nowhere", "uri": f"{SCHEME}nowhere", "address": None}
    given = replace(order(bench), destination=there)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(cancelling(command(given, MIGRATE)))
        assert codes(reports.wait(1)) == ["cancelled"]
    assert bench.guests.power(given.server_id) is PowerState.RUNNING


# --- following --------------------------------------------------------------------------------


def test_progress_is_told_for_its_command_and_at_most_once_a_second(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    told: list[tuple[Any, int, int]] = []
    bench.guests.migrate = Movement(moved=True)  # type: ignore[method-assign]
    given = command(order(bench), MIGRATE)
    hooks: dict[str, Any] = {"progress": lambda *said: told.append(said)}
    with running_executor(bench.world(), tmp_path, reports, **hooks) as executor:
        executor.submit(given)
        reports.wait(1)
    assert told == [(given, 1, 10)]


def test_progress_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(watch, "TELL_S", 0.0)
    follower = RunWatch(threading.Event(), lambda done, _total: told.append(done))
    for done in (1, 2):
        follower.progress(done, 10)
    assert told == [1, 2]


def test_who_follows_a_long_step_leaves_it_when_the_agent_stops() -> None:
    stop = threading.Event()
    follower = RunWatch(stop, lambda _done, _total: None)
    assert not follower.cancelled()
    stop.set()
    with pytest.raises(Stopping):
        follower.cancelled()
