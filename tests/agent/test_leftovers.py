"""A host that comes back clears what is not its any more, before it works again (decision 0027)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.clock import StopClock
from host_agent.leftovers import LeftoversRelease
from host_agent.locks import Locks
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import Registration, Release
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.wire import read
from tests.agent.bench import Bench, command, eventually
from tests.agent.fake_ledger import FakeLedger
from tests.agent.test_link import Agent, finished
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged

ANOTHER = "1" * 8 + "-1111" * 3 + "-" + "1" * 12


def leftovers(bench: Bench, path: Path) -> LeftoversRelease:
    return LeftoversRelease(bench.world(), Locks(path), StopClock(threading.Event()))


def of(*lanes: Lane) -> Release:
    return Release(
        guests=tuple(lane.server_id for lane in lanes),
        attachments=tuple(lane.attachment_id or "" for lane in lanes),
    )


def test_guest_goes_first_and_its_volume_by_the_hosts_own_record(
    bench: Bench, tmp_path: Path
) -> None:
    lane, stays = bench.attached(), bench.attached()
    bench.model.drop_attachment(lane.attachment_id or "")  # evacuated: Cinder has forgotten it
    bench.calls.clear()
    leftovers(bench, tmp_path).clear(of(lane))
    assert bench.calls.index("guests.remove") < bench.calls.index("brick.disconnect")
    assert list(bench.store.read()["guests"]) == [stays.server_id]
    assert list(bench.records) == [stays.attachment_id]
    assert len(connected_paths(bench.store)) == 1
    assert broken_invariants(bench.store) == []


def test_volume_that_cinder_has_forgotten_is_disconnected_too(bench: Bench, tmp_path: Path) -> None:
    lane = bench.attached()
    with bench.model.lock:
        bench.model.drop_attachment(lane.attachment_id or "")
        del bench.model.volumes[lane.volume_id]
    leftovers(bench, tmp_path).clear(of(lane))
    assert connected_paths(bench.store) == set()


def test_connection_that_another_attachment_has_rightly_is_left(
    bench: Bench, tmp_path: Path
) -> None:
    gone, stays = bench.two_users()
    leftovers(bench, tmp_path).clear(of(gone))
    assert list(bench.records) == [stays.attachment_id]
    assert len(connected_paths(bench.store)) == 1
    assert broken_invariants(bench.store) == []


def test_a_guest_that_stays_loses_a_disk_whose_volume_others_have_rightly(
    bench: Bench, tmp_path: Path
) -> None:
    gone, stays = bench.two_users()
    leftovers(bench, tmp_path).clear(replace(of(gone), guests=()))
    disks = plugged(bench.store)
    assert (len(disks[gone.server_id]), len(disks[stays.server_id])) == (0, 1)
    assert len(connected_paths(bench.store)) == 1


def test_a_disk_stays_that_another_volume_is_rightly_behind(bench: Bench, tmp_path: Path) -> None:
    """What a swap had connected is left over: the disk is that of the volume it was to leave."""
    stays, new = bench.attached(), bench.attached()
    record = bench.records[new.attachment_id or ""]
    swapped = replace(record, server_id=stays.server_id, serial=stays.disk_serial)
    bench.records[new.attachment_id or ""] = swapped
    leftovers(bench, tmp_path).clear(replace(of(new), guests=()))
    assert len(plugged(bench.store)[stays.server_id]) == 1
    assert list(bench.records) == [stays.attachment_id]
    assert len(connected_paths(bench.store)) == 1


def test_a_record_that_nobody_knows_keeps_the_connection_and_no_disk(
    bench: Bench, tmp_path: Path
) -> None:
    """No agent of ours made it: the log knows an attachment before anything is recorded by it."""
    gone, stays = bench.attached(), bench.attached()
    record = bench.records[gone.attachment_id or ""]
    bench.records["nobody's"] = replace(record, attachment_id="nobody's")
    release = replace(of(gone), guests=(), unknown=("nobody's",))
    leftovers(bench, tmp_path).clear(release)
    disks = plugged(bench.store)
    assert (len(disks[gone.server_id]), len(disks[stays.server_id])) == (0, 1)
    assert sorted(bench.records) == sorted(["nobody's", stays.attachment_id or ""])
    assert len(connected_paths(bench.store)) == 2


def test_two_leftovers_of_one_volume_both_go(bench: Bench, tmp_path: Path) -> None:
    both = bench.two_users()
    bench.users.by_attachment.clear()  # the ledger has them here no more
    leftovers(bench, tmp_path).clear(of(*both))
    assert bench.records == {}
    assert connected_paths(bench.store) == set()


def test_connection_that_an_adopted_server_has_without_a_record_is_left(
    bench: Bench, tmp_path: Path
) -> None:
    """What Nova connected has none; the ledger knows who has the volume here (decision 0014)."""
    gone, stays = bench.two_users()
    del bench.records[stays.attachment_id or ""]
    leftovers(bench, tmp_path).clear(of(gone))
    assert list(bench.store.read()["guests"]) == [stays.server_id]
    assert len(connected_paths(bench.store)) == 1


def test_a_guest_that_cannot_be_removed_keeps_no_other_one_running(
    bench: Bench, tmp_path: Path
) -> None:
    first, second = bench.attached(), bench.attached()
    bench.faults.replace([{"call": "guests.remove", "do": "fail"}])
    with pytest.raises(PortError):
        leftovers(bench, tmp_path).clear(of(first, second))
    assert list(bench.store.read()["guests"]) == [first.server_id]
    assert len(connected_paths(bench.store)) == 2, "no volume goes under a guest"
    leftovers(bench, tmp_path).clear(of(first, second))
    assert (bench.store.read()["guests"], connected_paths(bench.store)) == ({}, set())


def test_clearing_is_repeated_until_it_works(bench: Bench, tmp_path: Path) -> None:
    lane = bench.attached()
    clearing = leftovers(bench, tmp_path)
    bench.faults.replace([{"call": "brick.disconnect", "do": "fail"}])
    with pytest.raises(PortError):
        clearing.clear(of(lane))
    assert list(bench.records) == [lane.attachment_id]
    clearing.clear(of(lane))
    clearing.clear(of(lane))
    assert bench.records == {}
    assert connected_paths(bench.store) == set()


def test_while_cinder_is_away_the_guest_goes_and_nothing_is_disconnected(
    bench: Bench, tmp_path: Path
) -> None:
    """By which target the volume comes, and so which lock it needs, only Cinder knows."""
    lane = bench.attached()
    clearing = leftovers(bench, tmp_path)
    bench.faults.replace([{"call": "volume_show", "do": "fail"}])
    with pytest.raises(PortError):
        clearing.clear(of(lane))
    assert bench.store.read()["guests"] == {}
    assert len(connected_paths(bench.store)) == 1
    clearing.clear(of(lane))
    assert bench.records == {}
    assert connected_paths(bench.store) == set()


# --- over the line ------------------------------------------------------------------------


def shown(lane: Lane) -> Any:
    """The ledger's rule: release what of this lane is shown."""

    def release(said: Registration) -> dict[str, Any]:
        guests = [g.server_id for g in said.guests if g.server_id == lane.server_id]
        ids = [id_ for id_ in said.connections if id_ == lane.attachment_id]
        return {"guests": guests, "attachments": ids}

    return release


def test_no_command_is_asked_for_before_all_is_cleared_and_shown(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    lane, other = bench.attached(), bench.lane()
    fake_ledger.release = shown(lane)
    bench.faults.replace([{"call": "brick.disconnect", "do": "fail", "count": 2}])
    given = fake_ledger.give(command(other))
    polled: list[int] = []
    registered = fake_ledger.release

    def watching(said: Registration) -> dict[str, Any]:
        polled.append(len(fake_ledger.polls))
        return dict(registered(said))

    fake_ledger.release = watching
    with Agent(bench, fake_ledger, tmp_path).running():
        finished(fake_ledger, given)
    cleared = next(n for n, r in enumerate(fake_ledger.registrations) if not r.connections)
    assert cleared >= 3, "two failures, and one success"
    assert polled[: cleared + 1] == [0] * (cleared + 1)
    assert lane.server_id not in bench.store.read()["guests"]
    assert broken_invariants(bench.store) == []


def test_leftovers_found_later_stop_the_commands_until_they_are_cleared(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    lane = bench.attached()
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        eventually(lambda: fake_ledger.polls, "a poll")
        fake_ledger.release = shown(lane)
        fake_ledger.epoch = 2
        eventually(lambda: bench.records == {}, "the leftovers to go")
        eventually(lambda: agent.link.is_current(2), "the new epoch")
        given = fake_ledger.give(command(bench.lane(), epoch=2))
        finished(fake_ledger, given)


def test_ledger_that_names_no_leftovers_wants_none_cleared() -> None:
    assert not read({"unknown": [ANOTHER]}, Release)
    assert Release(guests=("a",))


# --- what else goes over the line -----------------------------------------------------------


def test_agent_asks_the_ledger_who_else_uses_a_volume(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    lane = bench.attached()
    fake_ledger.users[lane.attachment_id or ""] = [ANOTHER]
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        eventually(lambda: fake_ledger.polls, "a poll")
        fake_ledger.fail_next = [503, 500]
        assert agent.link.others(lane.volume_id, lane.attachment_id or "") == [ANOTHER]


def test_ledger_that_cannot_tell_is_no_answer(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    lane = bench.attached()
    with Agent(bench, fake_ledger, tmp_path, inventory_interval_s=60.0).running() as agent:
        eventually(lambda: fake_ledger.polls, "a poll")
        fake_ledger.users = {lane.attachment_id or "": None}  # type: ignore[dict-item]
        with pytest.raises(PortError, match="does not say"):
            agent.link.others(lane.volume_id, lane.attachment_id or "")


def test_progress_goes_to_the_ledger(bench: Bench, fake_ledger: FakeLedger, tmp_path: Path) -> None:
    given = replace(command(bench.lane()), run=7)
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        eventually(lambda: fake_ledger.polls, "a poll")
        agent.link.progress(given, 3, 9)
        (told,) = eventually(lambda: fake_ledger.progress, "the progress")
    wanted = {"operation_id": given.operation_id, "run": 7, "done_bytes": 3, "total_bytes": 9}
    assert told == wanted
