"""Cinder's old calls behind the same verbs, and the way from them to the new ones."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import Verb
from host_agent.shared.contract.ports import PortError
from tests.agent.bench import ATTACH, DETACH, Bench
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged


def old_attached(bench: Bench) -> Lane:
    lane = bench.old_lane()
    bench.run(lane, *ATTACH)
    bench.calls.clear()
    return lane


def status(bench: Bench, lane: Lane) -> str:
    return bench.model.volume(lane.volume_id).status


#: Those that change something.
OLD_CALLS = {
    f"cinder.{name}"
    for name in (
        *("reserve", "unreserve", "initialize_connection", "terminate_connection"),
        *("attach", "begin_detaching", "roll_detaching", "detach"),
    )
}


def old_calls(bench: Bench) -> list[str]:
    return [call for call in bench.calls if call in OLD_CALLS]


def test_attach_and_detach_by_the_old_calls_leave_nothing(bench: Bench) -> None:
    lane = bench.old_lane()
    bench.calls.clear()
    bench.run(lane, *ATTACH)
    assert not [call for call in bench.calls if call.startswith("cinder.attachment")]
    assert old_calls(bench)[-1] == "cinder.attach"
    assert status(bench, lane) == "in-use"
    assert broken_invariants(bench.store) == []

    bench.calls.clear()
    bench.run(lane, *DETACH)
    assert old_calls(bench) == [
        "cinder.begin_detaching",
        "cinder.terminate_connection",
        "cinder.detach",
    ]
    assert status(bench, lane) == "available"
    assert connected_paths(bench.store) == set()
    assert plugged(bench.store)[lane.server_id] == {}


@pytest.mark.parametrize("verb", [*ATTACH, *DETACH])
def test_each_verb_run_twice_changes_nothing_more(bench: Bench, verb: Verb) -> None:
    lane = bench.old_lane() if verb in ATTACH else old_attached(bench)
    flow = ATTACH if verb in ATTACH else DETACH
    bench.run(lane, *flow[: flow.index(verb) + 1])
    state, seen = bench.store.read(), status(bench, lane)
    bench.run(lane, verb)
    assert (bench.store.read(), status(bench, lane)) == (state, seen)


def test_a_connection_that_the_old_calls_make_has_a_name_of_our_own(bench: Bench) -> None:
    named = bench.run(bench.old_lane(), Verb.ATTACHMENT_CREATE)["attachment_id"]
    nameless = replace(bench.old_lane(), attachment_id=None)
    made = [bench.run(nameless, Verb.ATTACHMENT_CREATE)["attachment_id"] for _ in range(2)]
    assert len({*map(UUID, made), UUID(named)}) == 3


def test_a_volume_that_is_asked_for_read_only_is_told_to_be_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, told = replace(bench.old_lane(), access_mode="ro"), list[tuple[str, ...]]()
    bench.run(lane, *ATTACH[:-1])
    monkeypatch.setattr(bench.cinder, "attach", lambda *it: told.append(it), raising=False)
    bench.run(lane, ATTACH[-1])
    assert told == [(lane.volume_id, lane.server_id, "/dev/vdb", "compute-1", "ro")]


def test_attach_that_failed_gives_the_reservation_back(bench: Bench) -> None:
    lane = bench.old_lane()
    bench.run(lane, *ATTACH[:3])
    bench.run(lane, *DETACH)
    assert old_calls(bench)[-2:] == ["cinder.terminate_connection", "cinder.unreserve"]
    assert status(bench, lane) == "available"


def test_failure_to_terminate_leaves_the_volume_in_use(bench: Bench) -> None:
    lane = old_attached(bench)
    bench.run(lane, *DETACH[:2])
    fails = {"call": "volume_action", "match": {"action": "os-terminate_connection"}, "do": "fail"}
    bench.faults.replace([fails])
    with pytest.raises(PortError):
        bench.run(lane, Verb.ATTACHMENT_DELETE)
    assert status(bench, lane) == "in-use"
    bench.run(lane, Verb.ATTACHMENT_DELETE)
    assert status(bench, lane) == "available"


def test_disconnect_uses_what_was_connected_and_asks_for_no_new_connection(bench: Bench) -> None:
    lane = old_attached(bench)
    bench.run(lane, *DETACH[:2])
    assert "cinder.initialize_connection" not in bench.calls
    assert connected_paths(bench.store) == set()


@pytest.mark.parametrize("side", ["former", "undone"])
def test_of_a_volume_that_moves_only_this_hosts_connection_ends(bench: Bench, side: str) -> None:
    lane = old_attached(bench)
    bench.guests.remove(lane.server_id)
    other = LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id, host="other")
    mine = lane.attachment_id if side == "former" else None
    lane = replace(lane, attachment_id=mine, other=other)
    if side == "undone":
        made = bench.run(lane, Verb.ATTACHMENT_CREATE)
        lane = replace(lane, attachment_id=made["attachment_id"])
        assert made["attachment_id"] != other.attachment_id
    bench.calls.clear()
    bench.run(lane, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert old_calls(bench)[-1] == "cinder.terminate_connection"
    assert status(bench, lane) == "in-use"


def test_move_by_the_old_calls_keeps_the_servers_row(bench: Bench) -> None:
    lane = old_attached(bench)
    other = LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id, host="other")
    bench.run(replace(lane, other=other), Verb.ATTACHMENT_COMPLETE)
    assert "cinder.attach" not in bench.calls


@pytest.mark.parametrize("times", [1, 2])
def test_convert_makes_the_row_an_attachment_under_a_guest_that_keeps_its_disk(
    bench: Bench, times: int
) -> None:
    lane = old_attached(bench)
    former = LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id)
    new = replace(lane, attachment_id=None, legacy=False, other=former)
    before = bench.store.read()["guests"]
    for _ in range(times):
        made = bench.run(new, Verb.ATTACHMENT_CONVERT)
    (row,) = bench.model.attachments_of(lane.volume_id)
    assert (made["attachment_id"], row.status) == (row.id, "attached")
    assert made["driver"] == "iscsi"
    assert bench.store.read()["guests"] == before
    assert list(bench.records) == [row.id]

    bench.run(replace(new, attachment_id=row.id, other=None), *DETACH)
    assert status(bench, lane) == "available"
    assert broken_invariants(bench.store) == []


def test_convert_goes_on_with_a_row_that_an_earlier_attempt_has_begun_with(bench: Bench) -> None:
    lane = old_attached(bench)
    [row] = bench.model.attachments_of(lane.volume_id)
    row.status = "attaching"
    former = LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id)
    new = replace(lane, attachment_id=None, legacy=False, other=former)
    assert bench.run(new, Verb.ATTACHMENT_CONVERT)["attachment_id"] == row.id
    assert row.status == "attached"


def test_a_volume_that_cinder_has_forgotten_needs_no_giving_back(bench: Bench) -> None:
    lane = old_attached(bench)
    bench.run(lane, *DETACH[:2])
    del bench.model.volumes[lane.volume_id]
    assert bench.run(lane, Verb.ATTACHMENT_DELETE) == {}


def test_any_other_trouble_with_giving_back_is_told(bench: Bench) -> None:
    lane = old_attached(bench)
    bench.run(lane, *DETACH[:2])
    bench.faults.replace([{"call": "volume_show", "do": "fail"}])
    with pytest.raises(PortError):
        bench.run(lane, Verb.ATTACHMENT_DELETE)


def test_the_row_that_goes_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared volume has several, and Cinder cannot choose."""
    lane = old_attached(bench)
    named: list[tuple[str, ...]] = []
    [row] = bench.model.attachments_of(lane.volume_id)
    monkeypatch.setattr(bench.cinder, "detach", lambda *ids: named.append(ids), raising=False)
    bench.run(lane, *DETACH)
    assert named == [(lane.volume_id, row.id)]


def test_convert_of_what_cinder_does_not_know_is_refused(bench: Bench) -> None:
    with pytest.raises(PortError) as raised:
        bench.run(bench.old_lane(), Verb.ATTACHMENT_CONVERT)
    assert raised.value.code == "not_attached"
