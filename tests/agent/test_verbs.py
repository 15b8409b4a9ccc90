"""Each verb is an ensure: run once, twice, after a half-done effect, and failing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from host_agent.shared.contract.messages import ErrorKind, PowerState, Verb
from host_agent.shared.contract.ports import LATE_S, PortError
from host_agent.verbs.cinder import wait_until
from host_agent.verbs.disks import bus_of
from tests.agent.bench import ATTACH, DETACH, Bench
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged

BEFORE = {verb: ATTACH[: ATTACH.index(verb)] for verb in ATTACH}


def status(bench: Bench, attachment_id: str | None) -> str | None:
    row = bench.model.attachments.get(attachment_id or "")
    return row.status if row else None


def test_attach_then_detach_leaves_nothing(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *ATTACH)
    assert status(bench, lane.attachment_id) == "attached"
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}
    assert broken_invariants(bench.store) == []

    bench.run(lane, *DETACH)
    assert status(bench, lane.attachment_id) is None
    assert bench.model.volume(lane.volume_id).status == "available"
    assert connected_paths(bench.store) == set()
    assert plugged(bench.store)[lane.server_id] == {}


@pytest.mark.parametrize("driver", ["rbd", "iscsi", "local"])
@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.PAUSED, PowerState.SHUTDOWN])
def test_attach_and_detach_in_every_power_state(driver: str, power: PowerState) -> None:
    bench = Bench(driver=driver)
    lane = bench.lane(bench.server(power))
    bench.run(lane, *ATTACH)
    live = None if power is PowerState.SHUTDOWN else "vdb"
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: (live, "vdb")}
    bench.run(lane, *DETACH)
    assert broken_invariants(bench.store) == []


@pytest.mark.parametrize("verb", ATTACH)
def test_each_attach_verb_run_twice_changes_nothing_more(bench: Bench, verb: Verb) -> None:
    lane = bench.lane()
    bench.run(lane, *BEFORE[verb])
    first = bench.run(lane, verb)
    state, row = bench.store.read(), status(bench, lane.attachment_id)

    again = bench.run(lane, verb)
    # Whose connector it gave is told by whoever gave it.
    told = [{k: v for k, v in each.items() if k != "connector_host"} for each in (first, again)]
    assert told[0] == told[1]
    assert bench.store.read() == state
    assert status(bench, lane.attachment_id) == row


@pytest.mark.parametrize("verb", DETACH[:2])
def test_each_detach_verb_run_twice_changes_nothing_more(bench: Bench, verb: Verb) -> None:
    lane = bench.attached()
    bench.run(lane, *DETACH[: DETACH.index(verb)])
    first = bench.run(lane, verb)
    state = bench.store.read()
    assert bench.run(lane, verb) == first
    assert bench.store.read() == state


def test_attachment_delete_run_twice_is_success(bench: Bench) -> None:
    lane = bench.attached()
    bench.run(lane, *DETACH)
    assert bench.run(lane, Verb.ATTACHMENT_DELETE) == {}


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        (Verb.ATTACHMENT_UPDATE, "attachment_update"),
        (Verb.ATTACHMENT_UPDATE, "brick.connector"),
        (Verb.VOLUME_WAIT_READY, "volume_show"),
        (Verb.VOLUME_CONNECT, "brick.connect"),
        (Verb.DISK_PLUG, "guests.plug"),
        (Verb.ATTACHMENT_COMPLETE, "attachment_complete"),
        (Verb.DISK_UNPLUG, "guests.unplug"),
        (Verb.VOLUME_DISCONNECT, "brick.disconnect"),
        (Verb.ATTACHMENT_DELETE, "attachment_delete"),
    ],
)
@pytest.mark.parametrize("deed", ["fail", "fail_after", "timeout", "timeout_after"])
def test_each_verb_repeated_after_a_failure_of_any_kind_succeeds(
    bench: Bench, verb: Verb, call: str, deed: str
) -> None:
    lane = bench.attached() if verb in DETACH else bench.lane()
    flow = DETACH if verb in DETACH else ATTACH
    bench.run(lane, *flow[: flow.index(verb)])
    bench.faults.replace([{"call": call, "do": deed}])

    with pytest.raises(PortError) as raised:
        bench.run(lane, verb)
    if deed != "fail":
        assert raised.value.kind is ErrorKind.UNKNOWN
    bench.run(lane, *flow[flow.index(verb) :])

    assert broken_invariants(bench.store) == []
    assert status(bench, lane.attachment_id) == ("attached" if flow is ATTACH else None)


# --- attachment_update ----------------------------------------------------------------


def test_update_of_an_attached_attachment_is_not_sent_again(bench: Bench) -> None:
    lane = bench.attached()
    bench.run(lane, Verb.ATTACHMENT_UPDATE)
    assert "cinder.attachment_update" not in bench.calls
    assert status(bench, lane.attachment_id) == "attached"


def test_update_tells_the_driver_and_an_identity_but_no_secret(bench: Bench) -> None:
    lane = bench.lane()
    outputs = bench.run(lane, Verb.ATTACHMENT_UPDATE)
    assert outputs["driver"] == "iscsi"
    assert len(outputs["target_digest"]) == 64
    assert bench.model.secrets, "the simulation plants secrets"
    assert not any(secret in str(outputs) for secret in bench.model.secrets)


def test_two_volumes_have_two_identities_and_one_volume_has_one(bench: Bench) -> None:
    digests = [
        bench.run(lane, Verb.ATTACHMENT_UPDATE)["target_digest"]
        for lane in (bench.lane(), bench.lane())
    ]
    assert digests[0] != digests[1]
    lane = bench.lane()
    first = bench.run(lane, Verb.ATTACHMENT_UPDATE)
    DirectCinder(bench.model).attachment_delete(lane.attachment_id or "")
    again = bench.lane(lane.server_id, lane.volume_id)
    assert bench.run(again, Verb.ATTACHMENT_UPDATE) == first, "other secrets, same target"


def test_missing_attachment_is_final(bench: Bench) -> None:
    lane = bench.lane(device_name="vdb")
    bench.model.drop_attachment(lane.attachment_id or "")
    for verb in (Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT, Verb.ATTACHMENT_COMPLETE):
        with pytest.raises(PortError) as raised:
            bench.run(lane, verb)
        assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "attachment_gone")


# --- what a run remembers -----------------------------------------------------------------


def test_a_run_asks_cinder_nothing_twice_and_looks_at_what_it_did(bench: Bench) -> None:
    lane, context = bench.lane(), bench.context()
    bench.calls.clear()
    wait_until(context, lane.volume_id, lambda _volume: True)  # as it takes its locks
    bench.run(lane, *ATTACH, context=context)
    asked = [call.removeprefix("cinder.") for call in bench.calls if call.startswith("cinder.")]
    assert asked == [
        *("volume", "attachment", "attachment_update"),
        *("attachment_complete", "attachment"),
    ]


def test_a_run_that_had_to_wait_does_not_connect_by_what_it_saw_before(bench: Bench) -> None:
    lane, context = bench.lane(), bench.context()
    bench.run(lane, Verb.ATTACHMENT_UPDATE, context=context)
    volume = bench.model.volume(lane.volume_id)
    volume.status = "creating"

    def passing(seconds: float) -> None:
        bench.clock.time += seconds
        volume.status = "attaching"
        bench.model.attachment_delete(lane.attachment_id or "")

    bench.clock.wait = passing  # type: ignore[method-assign]
    with pytest.raises(PortError, match="does not exist"):
        bench.run(lane, Verb.VOLUME_WAIT_READY, Verb.VOLUME_CONNECT, context=context)
    assert connected_paths(bench.store) == set()


def test_an_attachment_that_is_gone_when_it_is_completed_is_told_as_such(bench: Bench) -> None:
    lane, context = bench.lane(), bench.context()
    bench.run(lane, *BEFORE[Verb.ATTACHMENT_COMPLETE], context=context)
    bench.model.attachment_delete(lane.attachment_id or "")
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_COMPLETE, context=context)
    assert raised.value.code == "attachment_gone"


# --- volume_wait_ready ----------------------------------------------------------------


def test_waits_for_provisioning_and_then_for_the_service_uuid(bench: Bench) -> None:
    volume = bench.model.add_volume(driver="iscsi")
    lane = bench.lane(volume_id=volume.id)
    volume.status, volume.service_uuid, seen = "creating", None, []

    def passing(seconds: float) -> None:
        seen.append(seconds)
        bench.clock.time += seconds
        if len(seen) == 2:
            volume.status = "reserved"
        if len(seen) == 4:
            volume.service_uuid = "late-uuid"

    bench.clock.wait = passing  # type: ignore[method-assign]
    bench.run(lane, Verb.VOLUME_WAIT_READY)
    assert len(seen) == 4


def test_volume_that_is_never_ready_is_final_at_the_deadline(bench: Bench) -> None:
    lane = bench.lane()
    bench.model.volume(lane.volume_id).status = "downloading"
    with pytest.raises(PortError, match="30 s") as raised:
        bench.run(lane, Verb.VOLUME_WAIT_READY)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "volume_not_ready")
    assert sum(bench.clock.waited) <= 30.0


@pytest.mark.parametrize("state", ["error", "error_extending"])
def test_volume_in_error_is_final_at_once(bench: Bench, state: str) -> None:
    lane = bench.lane()
    bench.model.volume(lane.volume_id).status = state
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.VOLUME_WAIT_READY)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "volume_error")
    assert bench.clock.waited == []


@pytest.mark.parametrize("state", ["error", "error_extending"])
def test_an_error_of_the_volume_is_not_in_the_way_of_its_lock(bench: Bench, state: str) -> None:
    """Which a start and a detach take, too."""
    lane = bench.lane()
    volume = bench.model.volume(lane.volume_id)
    volume.status, volume.service_uuid = state, "lock"
    found = wait_until(bench.context(), volume.id, lambda seen: seen.service_uuid is not None)
    assert (found.status, found.service_uuid) == (state, "lock")


# --- connect, plug, complete ----------------------------------------------------------


def test_connect_without_a_connection_is_final_and_touches_nothing(bench: Bench) -> None:
    lane = bench.lane()
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.VOLUME_CONNECT)
    assert raised.value.code == "not_connected"
    assert not [call for call in bench.calls if call.startswith("brick")]


def test_connect_reports_the_path_and_no_secret() -> None:
    bench = Bench(driver="rbd")
    lane = bench.lane()
    outputs = bench.run(lane, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    assert outputs["device_path"] == f"volumes/volume-{lane.volume_id}"
    assert outputs["disk"]["protocol"] == "rbd"
    assert (outputs["disk"]["format"], outputs["disk"]["readonly"]) == ("raw", False)
    assert bench.model.secrets
    assert not any(secret in str(outputs) for secret in bench.model.secrets)


def test_plug_in_a_later_run_connects_again_to_learn_the_source(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *BEFORE[Verb.DISK_PLUG])
    bench.calls.clear()
    bench.run(lane, Verb.DISK_PLUG)  # a new context: nothing in memory
    assert bench.calls.index("brick.connect") < bench.calls.index("guests.plug")


def test_plug_makes_multiattach_disks_shareable_and_others_not(bench: Bench) -> None:
    shared, plain = bench.attached(multiattach=True), bench.attached()
    xml = {s: g["persistent"] for s, g in bench.store.read()["guests"].items()}
    assert "<shareable" in xml[shared.server_id]
    assert "<shareable" not in xml[plain.server_id]


@pytest.mark.parametrize(
    ("name", "bus"), [("vdb", "virtio"), ("xvdc", "virtio"), ("sdb", "scsi"), ("hdb", "scsi")]
)
def test_bus_follows_the_device_name(bench: Bench, name: str, bus: str) -> None:
    lane = bench.lane(device_name=name)
    outputs = bench.run(lane, *BEFORE[Verb.DISK_PLUG], Verb.DISK_PLUG)
    assert outputs == {"device_name": name, "bus": bus}


@pytest.mark.parametrize("name", ["", "vd", "nvme0n1", "vdb1", "/dev/vdb"])
def test_other_device_names_are_final(name: str) -> None:
    with pytest.raises(PortError) as raised:
        bus_of(name)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "bad_device_name")


def test_a_lane_without_a_name_gets_the_first_free_one(bench: Bench) -> None:
    server_id = bench.server(devices=["vda", "vdb"])
    lane = bench.lane(server_id, device_name=None)
    plug = (*BEFORE[Verb.DISK_PLUG], Verb.DISK_PLUG)
    assert bench.run(lane, *plug)["device_name"] == "vdc"
    assert bench.run(lane, Verb.DISK_PLUG)["device_name"] == "vdc", "the same when run again"


def test_a_name_that_is_taken_is_final_and_changes_nothing(bench: Bench) -> None:
    lane = bench.lane(bench.server(devices=["vda", "vdb"]))
    with pytest.raises(PortError) as raised:
        bench.run(lane, *BEFORE[Verb.DISK_PLUG], Verb.DISK_PLUG)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "device_name_taken")
    assert plugged(bench.store)[lane.server_id] == {}


@pytest.mark.parametrize("name", ["vdb", None])
def test_plug_into_a_missing_guest_is_final(bench: Bench, name: str | None) -> None:
    lane = bench.lane("00000000-0000-0000-0000-000000000000", device_name=name)
    bench.server()  # another one is here
    with pytest.raises(PortError) as raised:
        bench.run(lane, *BEFORE[Verb.DISK_PLUG], Verb.DISK_PLUG)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "guest_missing")


def test_complete_without_a_disk_in_the_guest_is_refused(bench: Bench) -> None:
    lane = bench.lane()
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_UPDATE, Verb.ATTACHMENT_COMPLETE)
    assert raised.value.code == "disk_not_plugged"
    assert status(bench, lane.attachment_id) == "attaching"


def test_complete_without_a_connection_is_refused(bench: Bench) -> None:
    lane = bench.lane()
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_COMPLETE)
    assert raised.value.code == "not_connected"
    assert status(bench, lane.attachment_id) == "reserved"


def test_complete_that_cinder_only_pretends_is_noticed(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *BEFORE[Verb.ATTACHMENT_COMPLETE])
    bench.faults.replace([{"call": "attachment_complete", "do": "lie"}])
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_COMPLETE)
    assert raised.value.kind is ErrorKind.UNKNOWN


@pytest.mark.parametrize(
    "verb",
    [Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT, Verb.VOLUME_DISCONNECT],
)
def test_what_needs_an_attachment_is_refused_without_one(bench: Bench, verb: Verb) -> None:
    lane = replace(bench.lane(), attachment_id=None)
    with pytest.raises(PortError) as raised:
        bench.run(lane, verb)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "no_attachment_id")
    assert raised.value.message == f"Mapping {lane.bdm_id} has no attachment."
    assert not [call for call in bench.calls if call.startswith("brick.")]


@pytest.mark.parametrize("verb", [Verb.ATTACHMENT_UPDATE, Verb.ATTACHMENT_REFRESH])
def test_a_request_that_may_be_under_way_is_given_time_once(bench: Bench, verb: Verb) -> None:
    lane = bench.lane()
    sent = {str(lane.attachment_id), "another"}
    bench.run(lane, verb, context=bench.context(sent=sent))
    assert bench.clock.waited == [LATE_S]
    assert sent == {"another"}
