"""Verbs of the detach, of multi-attach, and the order in which an attach is undone."""

from __future__ import annotations

import pytest

from host_agent.shared.contract.messages import ErrorKind, PowerState, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.simulated.host_state import set_power, without_disk
from tests.agent.bench import ATTACH, DETACH, Bench
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged


def status(bench: Bench, attachment_id: str | None) -> str | None:
    row = bench.model.attachments.get(attachment_id or "")
    return row.status if row else None


# --- unplug, disconnect, delete -------------------------------------------------------


def test_lp1727260_unplug_of_a_missing_disk_or_guest_is_success(bench: Bench) -> None:
    lane = bench.lane()
    assert bench.run(lane, Verb.DISK_UNPLUG) == {}
    with bench.store.edit() as state:
        del state["guests"][lane.server_id]
    assert bench.run(lane, Verb.DISK_UNPLUG) == {}


def test_lp1738254_attachment_without_connection_needs_no_disconnect(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *DETACH)
    assert not [call for call in bench.calls if call.startswith("brick")]
    assert status(bench, lane.attachment_id) is None


@pytest.mark.parametrize("verb", [Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE])
def test_nothing_is_taken_away_under_a_guest_that_has_the_disk(bench: Bench, verb: Verb) -> None:
    lane = bench.attached()
    with pytest.raises(PortError) as raised:
        bench.run(lane, verb)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "disk_still_plugged")
    assert connected_paths(bench.store) != set()
    assert status(bench, lane.attachment_id) == "attached"


def test_disconnect_with_the_attachment_gone_and_no_record_asks_for_an_operator(
    bench: Bench,
) -> None:
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    bench.model.drop_attachment(lane.attachment_id or "")
    bench.records.clear()
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.VOLUME_DISCONNECT)
    error = raised.value
    assert (error.kind, error.code) == (ErrorKind.FINAL, "attachment_gone_connected")


def test_a_disconnect_asks_once_who_else_has_the_volume(bench: Bench) -> None:
    """Each question is a request to the ledger, under the volume's lock."""
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    before = bench.users.asked
    bench.run(lane, Verb.VOLUME_DISCONNECT)
    assert bench.users.asked - before == 1


def test_lp1502534_failed_flush_stops_the_detach_with_the_attachment_kept(bench: Bench) -> None:
    lane = bench.attached()
    bench.faults.replace(
        [{"call": "brick.disconnect", "do": "fail", "kind": "final", "code": "flush_failed"}]
    )
    with pytest.raises(PortError) as raised:
        bench.run(lane, *DETACH)
    assert raised.value.code == "flush_failed"
    assert status(bench, lane.attachment_id) == "attached"
    assert connected_paths(bench.store) != set()


def test_lp1935057_attachment_left_behind_by_its_deletion_is_an_error(bench: Bench) -> None:
    lane = bench.attached()
    bench.run(lane, *DETACH[:2])
    bench.faults.replace([{"call": "attachment_delete", "do": "lie"}])
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_DELETE)
    assert raised.value.code == "attachment_left"
    bench.run(lane, Verb.ATTACHMENT_DELETE)
    assert status(bench, lane.attachment_id) is None


def test_a_deletion_whose_answer_shows_it_is_not_looked_at_again(bench: Bench) -> None:
    lane = bench.attached()
    bench.run(lane, *DETACH[:2])
    bench.calls.clear()
    bench.run(lane, Verb.ATTACHMENT_DELETE)
    # Nor is the attachment before it; but the volume is, and held (0040).
    called = [call for call in bench.calls if "cinder." in call]
    assert called == [
        "cinder.volume",
        "cinder.begin_detaching",
        "cinder.volume",
        "cinder.attachment_delete",
    ]


def test_lp1786318_guest_that_refuses_keeps_the_disk_in_both_copies(bench: Bench) -> None:
    lane = bench.attached()
    bench.faults.replace([{"call": "guests.unplug", "do": "lie", "code": "ignored"}])
    with pytest.raises(PortError) as raised:
        bench.run(lane, *DETACH)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_refused")
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}
    assert status(bench, lane.attachment_id) == "attached"
    assert broken_invariants(bench.store) == []


def test_guest_that_refuses_gets_back_what_its_definition_lacked(bench: Bench) -> None:
    lane = bench.attached()
    with bench.store.edit() as state:  # as a LIVE|CONFIG detach of libvirt leaves it
        guest = state["guests"][lane.server_id]
        guest["persistent"] = without_disk(guest["persistent"], "vdb")
    bench.faults.replace([{"call": "guests.unplug", "do": "lie", "code": "ignored"}])
    with pytest.raises(PortError):
        bench.run(lane, Verb.DISK_UNPLUG)
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}


@pytest.mark.parametrize("code", ["lost", "device_missing"])
def test_awkward_answers_of_libvirt_do_not_fail_an_unplug(bench: Bench, code: str) -> None:
    lane = bench.attached()
    bench.faults.replace([{"call": "guests.unplug", "do": "lie", "code": code}])
    bench.run(lane, *DETACH)
    assert broken_invariants(bench.store) == []
    assert status(bench, lane.attachment_id) is None


def test_plug_that_is_lost_is_done_again(bench: Bench) -> None:
    bench.faults.replace([{"call": "guests.plug", "do": "lie", "code": "lost"}])
    lane = bench.attached()
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}


def test_plug_that_never_shows_is_unknown(bench: Bench) -> None:
    bench.faults.replace([{"call": "guests.plug", "do": "lie", "code": "ignored"}])
    lane = bench.lane()
    with pytest.raises(PortError) as raised:
        bench.run(lane, *ATTACH)
    assert raised.value.kind is ErrorKind.UNKNOWN


def test_an_unplug_that_nobody_sees_is_unknown(bench: Bench) -> None:
    """Whatever was answered, nothing is disconnected under a guest that shows the disk."""
    lane = bench.attached()
    shown = bench.guests.disk(lane.server_id, lane.disk_serial)
    bench.guests.unplug = lambda *_: shown  # type: ignore[method-assign]
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.DISK_UNPLUG)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.UNKNOWN, "unplug_not_seen")


def test_unplug_follows_a_guest_that_was_stopped_or_started_in_between(bench: Bench) -> None:
    lane = bench.attached()
    set_power(bench.store, lane.server_id, PowerState.SHUTDOWN)
    bench.run(lane, Verb.DISK_UNPLUG)
    set_power(bench.store, lane.server_id, PowerState.RUNNING)
    assert plugged(bench.store)[lane.server_id] == {}


def test_transient_guest_has_only_a_live_copy(bench: Bench) -> None:
    lane = bench.attached(bench.server(transient=True))
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", None)}
    bench.run(lane, *DETACH)
    assert broken_invariants(bench.store) == []


# --- multi-attach ---------------------------------------------------------------------


def test_lp1839384_only_the_last_guest_of_a_volume_disconnects_it(bench: Bench) -> None:
    first, second = bench.two_users()
    assert bench.run(first, *DETACH[:2]) == {"shared": True}
    del bench.users.by_attachment[first.attachment_id or ""]
    bench.run(first, Verb.ATTACHMENT_DELETE)
    assert connected_paths(bench.store) != set()
    assert broken_invariants(bench.store) == []

    assert bench.run(second, *DETACH[:2]) == {"shared": False}
    assert connected_paths(bench.store) == set()


def test_who_left_a_shared_connection_has_no_record_of_it(bench: Bench) -> None:
    """Else it could be taken for a leftover, and disconnected under the other guest."""
    first, second = bench.two_users()
    bench.run(first, *DETACH[:2])
    assert list(bench.records) == [second.attachment_id]


def test_host_that_cannot_share_volumes_refuses_them(bench: Bench) -> None:
    lane = bench.lane(multiattach=True)
    for verb in (Verb.ATTACHMENT_UPDATE, Verb.ATTACHMENT_CREATE):
        with pytest.raises(PortError) as raised:
            bench.run(lane, verb, context=bench.context(multiattach=False))
        assert (raised.value.kind, raised.value.code) == (
            ErrorKind.FINAL,
            "multiattach_not_supported",
        )
    assert status(bench, lane.attachment_id) == "reserved"


# --- order: what a failed attach needs to be undone -----------------------------------


@pytest.mark.parametrize(
    "call", ["brick.connect", "guests.plug", "attachment_complete"], ids=lambda c: f"{c} fails"
)
@pytest.mark.parametrize("deed", ["fail", "fail_after"])
def test_lp1812969_lp1826523_lp1812945_failed_attach_disconnects_before_it_deletes(
    bench: Bench, call: str, deed: str
) -> None:
    lane = bench.lane()
    bench.faults.replace([{"call": call, "do": deed}])
    with pytest.raises(PortError):
        bench.run(lane, *ATTACH)
    bench.calls.clear()
    bench.run(lane, *DETACH)
    assert bench.calls.index("brick.disconnect") < bench.calls.index("cinder.attachment_delete")
    assert bench.calls.count("cinder.attachment_delete") == 1
    assert connected_paths(bench.store) == set()
    assert status(bench, lane.attachment_id) is None


def test_lp1765742_failing_disconnect_keeps_the_attachment(bench: Bench) -> None:
    lane = bench.lane()
    bench.faults.replace(
        [{"call": "attachment_complete", "do": "fail"}, {"call": "brick.disconnect", "do": "fail"}]
    )
    with pytest.raises(PortError):
        bench.run(lane, *ATTACH)
    with pytest.raises(PortError):
        bench.run(lane, *DETACH)
    assert status(bench, lane.attachment_id) == "attaching"


def test_lp2035695_transient_connect_failure_is_retryable_and_then_works(bench: Bench) -> None:
    lane = bench.lane()
    bench.faults.replace([{"call": "brick.connect", "do": "fail", "kind": "retryable"}])
    with pytest.raises(PortError) as raised:
        bench.run(lane, *ATTACH)
    assert raised.value.kind is ErrorKind.RETRYABLE
    bench.run(lane, *ATTACH)
    assert status(bench, lane.attachment_id) == "attached"
