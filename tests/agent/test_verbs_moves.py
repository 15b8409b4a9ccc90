"""Verbs with two sides: a volume that moves to another host, a disk that gets another volume."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.reporting import Verdict
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import ErrorKind, PowerState, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.simulated.host_state import set_power
from tests.agent.bench import WAIT_S, Bench, Reports, command, running_executor
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged

TAKE = (Verb.ATTACHMENT_CREATE, Verb.VOLUME_WAIT_READY, Verb.VOLUME_CONNECT)
SWAP = (Verb.ATTACHMENT_UPDATE, Verb.VOLUME_WAIT_READY, Verb.VOLUME_CONNECT, Verb.DISK_COPY)


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(PortError) as raised:
        yield
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, code)


def learning(bench: Bench, lane: Lane, *verbs: Verb) -> Lane:
    """Run verbs one by one, as in runs of their own; the lane with what they told."""
    for verb in verbs:
        told = bench.run(lane, verb)
        known = {name: told[name] for name in ("attachment_id", "disk") if name in told}
        lane = replace(lane, **known)
    return lane


def moving(bench: Bench, **over: Any) -> Lane:
    """A volume that the server has on another host, to be had here as well."""
    there = bench.attached(**over)
    side = LaneSide(volume_id=there.volume_id, attachment_id=there.attachment_id, host="other")
    for record in list(bench.records):
        del bench.records[record]
    with bench.store.edit() as state:  # all that was another host's
        state["connected"].clear()
        del state["guests"][there.server_id]
    known = (there.attachment_id or "",)
    return replace(there, attachment_id=None, other=side, known=known)


def rows(bench: Bench, lane: Lane) -> dict[str, str]:
    return {row.id: row.status for row in bench.model.attachments_of(lane.volume_id)}


# --- an attachment of this host's own -------------------------------------------------


def test_taking_a_volume_leaves_what_the_server_has_elsewhere(bench: Bench) -> None:
    lane = moving(bench)
    before = rows(bench, lane)
    outputs = bench.run(lane, Verb.ATTACHMENT_CREATE)
    assert outputs["driver"] == "iscsi"
    assert rows(bench, lane) == {**before, outputs["attachment_id"]: "attaching"}
    bench.run(replace(lane, attachment_id=outputs["attachment_id"]), *TAKE[1:])
    assert len(connected_paths(bench.store)) == 1


@pytest.mark.parametrize("deed", ["fail_after", "timeout_after"])
def test_create_with_a_lost_answer_leaves_one_attachment(bench: Bench, deed: str) -> None:
    lane = moving(bench)
    before = rows(bench, lane)
    bench.faults.replace([{"call": "attachment_create", "do": deed}])
    with pytest.raises(PortError):
        bench.run(lane, Verb.ATTACHMENT_CREATE)
    made = bench.run(lane, Verb.ATTACHMENT_CREATE)["attachment_id"]
    assert rows(bench, lane) == {**before, made: "attaching"}


def test_create_removes_what_one_that_failed_halfway_has_left(bench: Bench) -> None:
    lane = moving(bench)
    before = rows(bench, lane)
    DirectCinder(bench.model).attachment_create(lane.volume_id, lane.server_id)
    made = bench.run(lane, Verb.ATTACHMENT_CREATE)["attachment_id"]
    assert rows(bench, lane) == {**before, made: "attaching"}


def test_undo_of_a_create_with_a_lost_answer_finds_what_it_made(bench: Bench) -> None:
    lane = moving(bench)
    before = rows(bench, lane)
    made = bench.run(lane, Verb.ATTACHMENT_CREATE)["attachment_id"]
    assert bench.run(lane, Verb.ATTACHMENT_DELETE) == {"ended": {made: lane.volume_id}}
    assert rows(bench, lane) == before


def test_attachment_that_the_ledger_does_not_want_any_more_is_taken_back(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    """The operation has gone on without this host: nobody will hear of what it has made."""
    lane, dropped = moving(bench), threading.Event()
    before = rows(bench, lane)
    reports.verdicts = [Verdict.STALE]
    with running_executor(bench.world(), tmp_path, reports, dropped=dropped.set) as executor:
        executor.submit(command(lane, (Verb.ATTACHMENT_CREATE, Verb.VOLUME_CONNECT)))
        assert dropped.wait(WAIT_S)
    assert reports.got[0].results[0].outputs["attachment_id"] not in before
    assert rows(bench, lane) == before


def test_plan_that_does_not_say_what_is_known_ends_nothing_unknown(bench: Bench) -> None:
    """As they were stored before lanes said it."""
    lane = bench.attached()
    other = bench.model.attachment_create(lane.volume_id, lane.server_id)
    bench.run(lane, Verb.DISK_UNPLUG)
    bench.run(lane, Verb.VOLUME_DISCONNECT)
    assert bench.run(replace(lane, known=()), Verb.ATTACHMENT_DELETE) == {}
    assert rows(bench, lane) == {other.id: "reserved"}
    ended = bench.run(replace(lane, known=(lane.attachment_id or "",)), Verb.ATTACHMENT_DELETE)
    assert ended == {"ended": {other.id: lane.volume_id}}


def test_former_host_lets_go_of_its_own_and_leaves_the_new_one(bench: Bench) -> None:
    lane = bench.attached()
    new = DirectCinder(bench.model).attachment_create(
        lane.volume_id, lane.server_id, {"host": "other"}
    )
    bench.guests.remove(lane.server_id)
    side = LaneSide(volume_id=lane.volume_id, attachment_id=new.id, host="other")
    bench.run(replace(lane, other=side), Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert rows(bench, lane) == {new.id: "attaching"}
    assert broken_invariants(bench.store) == []


# --- another volume behind a disk -----------------------------------------------------


def swapping(bench: Bench, driver: str = "iscsi") -> tuple[Lane, Lane]:
    """The two sides of a swap: what the guest has, and what it is to have."""
    old = bench.attached(driver=driver)
    new = bench.lane(old.server_id, driver=driver)
    side = LaneSide(volume_id=new.volume_id, attachment_id=new.attachment_id)
    former = LaneSide(volume_id=old.volume_id, attachment_id=old.attachment_id)
    new = replace(new, serial=old.volume_id, bdm_id=old.bdm_id, other=former)
    return replace(old, serial=old.volume_id, other=side), new


def with_other(old: Lane, new: Lane) -> Lane:
    assert old.other is not None
    return replace(old, other=replace(old.other, disk=new.disk))


@pytest.mark.parametrize("driver", ["iscsi", "rbd"])
@pytest.mark.parametrize("again", [False, True])
def test_swap_puts_the_other_volume_behind_the_same_disk(
    bench: Bench, driver: str, again: bool
) -> None:
    old, new = swapping(bench, driver)
    new = learning(bench, new, *SWAP, *(SWAP if again else ()), Verb.ATTACHMENT_COMPLETE)
    assert bench.guests.disk(old.server_id, old.volume_id).sources == (
        str((new.disk or {}).get("path") or (new.disk or {}).get("name")),
    )
    learning(bench, with_other(old, new), Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert rows(bench, old) == {}
    assert rows(bench, new) == {new.attachment_id: "attached"}
    assert plugged(bench.store)[old.server_id] == {old.volume_id: ("vdb", "vdb")}
    assert broken_invariants(bench.store) == []


@pytest.mark.parametrize("verb", [Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE])
def test_volume_that_the_guest_is_still_on_is_not_taken_away_in_a_swap(
    bench: Bench, verb: Verb
) -> None:
    old, new = swapping(bench)
    new = learning(bench, new, *SWAP[:3])
    with refused("disk_still_plugged"):
        bench.run(with_other(old, new), verb)
    learning(bench, new, Verb.DISK_COPY)
    with refused("disk_still_plugged"):
        bench.run(new, verb)


@pytest.mark.parametrize("done", range(len(SWAP)))
def test_swap_is_undone_at_any_step_before_the_switch(bench: Bench, done: int) -> None:
    old, new = swapping(bench)
    new = learning(bench, new, *SWAP[:done])
    learning(bench, new, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert rows(bench, new) == {}
    assert rows(bench, old) == {old.attachment_id: "attached"}
    assert broken_invariants(bench.store) == []


def test_new_volume_is_not_complete_before_the_guest_is_on_it(bench: Bench) -> None:
    _, new = swapping(bench)
    new = learning(bench, new, *SWAP[:3])
    with refused("disk_not_plugged"):
        bench.run(new, Verb.ATTACHMENT_COMPLETE)


def test_undo_of_a_copy_tells_whether_it_came_too_late(bench: Bench) -> None:
    _, new = swapping(bench)
    new = learning(bench, new, *SWAP[:3])
    assert bench.run(new, Verb.DISK_COPY_ABORT) == {}
    bench.run(new, Verb.DISK_COPY)
    assert bench.run(new, Verb.DISK_COPY_ABORT) == {"passed": True}


def test_undo_of_a_copy_that_told_nothing_connects_the_volume_and_looks(bench: Bench) -> None:
    _, new = swapping(bench)
    bench.run(new, *SWAP[:3])
    assert new.disk is None
    assert bench.run(new, Verb.DISK_COPY_ABORT) == {}


# --- a fresh connection ----------------------------------------------------------------

REFRESH = (
    Verb.ATTACHMENT_REFRESH,
    Verb.VOLUME_CONNECT,
    Verb.DISK_REPLACE,
    Verb.ATTACHMENT_COMPLETE,
)


@pytest.mark.parametrize("again", [False, True])
def test_refresh_of_a_stopped_guest_ends_the_former_connection_first(
    bench: Bench, again: bool
) -> None:
    lane = bench.attached()
    set_power(bench.store, lane.server_id, PowerState.SHUTDOWN)
    bench.calls.clear()
    for verb in REFRESH:
        for _ in range(1 + again):
            bench.run(lane, verb)
    changing = ("brick.disconnect", "cinder.attachment_update", "brick.connect", "guests.replace")
    order = [bench.calls.index(call) for call in changing]
    assert order == sorted(order)
    assert rows(bench, lane) == {lane.attachment_id: "attached"}
    assert broken_invariants(bench.store) == []


def test_refresh_keeps_the_record_of_what_it_has_disconnected_without_connections(
    bench: Bench,
) -> None:
    """The former target may be another volume's by the time the next start would end it."""
    lane = bench.attached()
    set_power(bench.store, lane.server_id, PowerState.SHUTDOWN)
    bench.run(lane, Verb.ATTACHMENT_REFRESH)
    [record] = bench.records.values()
    assert (record.attachment_id, record.infos, record.devices) == (lane.attachment_id, (), {})


def test_refresh_under_a_running_guest_disconnects_nothing(bench: Bench) -> None:
    lane = bench.attached()
    bench.calls.clear()
    bench.run(lane, *REFRESH)
    assert "brick.disconnect" not in bench.calls
    assert "cinder.attachment_update" in bench.calls
    assert rows(bench, lane) == {lane.attachment_id: "attached"}


def test_refresh_of_what_nova_compute_has_connected_records_that_before_cinder_forgets_it(
    bench: Bench,
) -> None:
    """By another portal, for example, or with another choice of multipath."""
    lane = bench.attached()
    bench.records.clear()
    [row] = bench.model.attachments.values()
    row.connection_info["target_iqn"] = "iqn:former"
    bench.run(lane, *REFRESH[:2])
    [record] = bench.records.values()
    former, present = (info["target_iqn"] for info in record.infos)
    assert former == "iqn:former" != present
    assert len(record.devices) == 1, "of the present one"


def test_refresh_of_what_is_gone_from_cinder_asks_for_nothing_to_be_removed(bench: Bench) -> None:
    """The running guest has the disk still."""
    lane = bench.attached()
    bench.records.clear()
    bench.model.attachments.clear()
    with pytest.raises(PortError) as raised:
        bench.run(lane, *REFRESH[:1])
    assert raised.value.code == "attachment_gone"


def test_refresh_leaves_a_connection_that_others_use(bench: Bench) -> None:
    lane, _ = bench.two_users()
    set_power(bench.store, lane.server_id, PowerState.SHUTDOWN)
    bench.calls.clear()
    bench.run(lane, Verb.ATTACHMENT_REFRESH)
    assert "brick.disconnect" not in bench.calls


def test_lane_verbs_of_a_swapped_disk_go_by_its_serial(bench: Bench) -> None:
    """The guest knows the disk by the id of the volume that was plugged first."""
    old, new = swapping(bench)
    new = replace(learning(bench, new, *SWAP, Verb.ATTACHMENT_COMPLETE), other=None)
    learning(bench, with_other(old, new), Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    bench.run(new, Verb.DISK_UNPLUG, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert plugged(bench.store)[new.server_id] == {}
    assert rows(bench, new) == {}
    assert broken_invariants(bench.store) == []
