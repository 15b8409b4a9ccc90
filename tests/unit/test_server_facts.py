"""A server: what a host's sight of it changes, who may work beside whom, what is shown of it."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates import errors
from aggregates.instance import Instance
from aggregates.server import DEFAULT_DETAILS, DEVICES_MAX, RESET, VmState, next_name
from tests.unit.test_aggregate_facts import ID, PLACED, after, facts

DEFINED = {
    "name": "asked for",
    "host": "h",
    "definition": "<d/>",
    "project_id": "p",
    "user_id": "u",
}
SEEN = {"name": "guest-7", "host": "h", "power_state": "running"}
LOST = {**SEEN, "power_state": "nostate", "devices": [], "volumes": [], "epoch": 1}


def observed(server: Instance, **over: Any) -> int:
    """How many events it takes to know what a host shows now."""
    before = server.version
    assert server.observe(**{**SEEN, **over})
    return server.version - before


def test_a_server_keeps_the_name_that_somebody_gave_it() -> None:
    server = after(Instance, (Instance.Defined, DEFINED))
    observed(server)
    assert server.name == "asked for"
    shown = Instance(ID)
    observed(shown)
    assert observed(shown, name="another") == 1
    assert shown.name == "another"


def test_a_host_that_says_no_epoch_is_in_its_first() -> None:
    server = Instance(ID)
    observed(server)
    assert server.epoch == 0
    assert observed(server, power_state="paused") == 1
    assert server.epoch == 0


@pytest.mark.parametrize(
    ("since", "follows"),
    [
        ([], True),
        ([(Instance.Placed, {**PLACED, "power_state": "nostate"})], False),
        (
            [(Instance.DeviceReserved, {"bdm_id": "b", "volume_id": "v", "device_name": "vdb"})],
            False,
        ),
    ],
    ids=["neither placed nor with volumes", "placed by a flow", "with a volume"],
)
def test_people_move_only_guests_that_no_flow_has_placed_and_without_volumes(
    since: list[Any], follows: bool
) -> None:
    lost = {**LOST, "project_id": None, "user_id": None}
    server = after(Instance, (Instance.InstanceRegistered, lost), *since)
    observed(server, host="there")
    assert server.host == ("there" if follows else "h")


@pytest.mark.parametrize("dropped", [[], ["x"]])
def test_a_definition_that_is_known_is_not_recorded_again(dropped: list[str]) -> None:
    server = Instance(ID)
    assert observed(server, definition=("<d/>", dropped)) == 2
    assert observed(server, definition=("<d/>", dropped)) == 0
    assert observed(server, definition=("<d/>", [*dropped, "y"])) == 1


def test_a_definition_of_which_nothing_was_dropped_is_the_one_that_was_asked_for() -> None:
    server = after(Instance, (Instance.Defined, DEFINED), (Instance.Placed, PLACED))
    observed(server)
    assert observed(server, definition=("<d/>", [])) == 0


def test_placing_records_what_is_not_so_already() -> None:
    server = Instance(ID)

    def placed(host: str, power_state: str) -> int:
        before = server.version
        server.place(host, power_state, 0)
        return server.version - before

    assert [placed("h", "running"), placed("h", "running")] == [1, 0]
    assert [placed("h", "paused"), placed("i", "paused"), placed("i", "paused")] == [1, 1, 0]
    server.record(Instance.Offloaded)
    assert [placed("i", "paused"), placed("i", "paused")] == [1, 0]
    server.record(Instance.StateReset, state="error")
    assert [placed("i", "paused"), placed("i", "paused")] == [1, 0]


def test_an_operator_says_that_a_server_is_in_error_and_that_it_is_not() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    server.record(Instance.Faulted, claimant="op", message="parked")
    server.record(Instance.StateReset, state="error")
    assert (set(server.faults), server.vm_state) == ({"op", RESET}, VmState.ERROR)
    server.record(Instance.StateReset, state="active")
    assert (server.faults, server.vm_state) == ({}, VmState.ACTIVE)


def test_what_is_said_of_a_server_is_kept_and_null_takes_it_back() -> None:
    server = after(Instance, (Instance.Defined, {**DEFINED, "tags": ["a"], "description": "d"}))
    assert server.details == {**DEFAULT_DETAILS, "tags": ["a"], "description": "d"}
    server.record(Instance.Described, changed={"metadata": {"k": "v"}, "tags": None})
    assert server.details == {**DEFAULT_DETAILS, "metadata": {"k": "v"}, "description": "d"}
    assert server.name == "asked for"


def test_a_device_that_is_released_says_whose_it_was() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    server.reserve_device("b", "v", None)
    server.release_device("b")
    released = vars(server.collect_events()[-1])
    assert (released["bdm_id"], released["volume_id"]) == ("b", "v")


def test_a_volume_in_an_empty_place_has_its_own_serial_unless_another_disk_has_it() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    server.reserve_device("b", "v", None)
    server.reserve_device("c", "w", None)
    server.set_device_volume("b", "x")
    swap = vars(server.collect_events()[-1])
    assert (swap["serial"], server.devices["b"].serial) == (None, "v")
    server.set_device_volume("c", None)
    server.set_device_volume("c", "v")
    assert server.devices["c"].serial == "c", "b's disk is still known by the id of v"


def test_there_are_only_so_many_device_names() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    every = {f"vd{a}{b}" for a in ["", *letters] for b in letters}
    with pytest.raises(errors.TooManyDevicesError, match=str(DEVICES_MAX)):
        next_name(every, ())


def test_only_what_is_parked_and_alone_with_the_server_is_refused_as_half_done() -> None:
    server = Instance(ID)
    server.claim("beside", exclusive=False)
    server.record(Instance.Faulted, claimant="beside", message="m")
    server.refuse_parked()
    server.release("beside")
    server.claim("alone", exclusive=True)
    server.refuse_parked()
    server.record(Instance.Faulted, claimant="alone", message="m")
    with pytest.raises(errors.ClaimedError, match="alone"):
        server.refuse_parked()


def test_only_what_is_parked_goes_on_and_not_beside_an_exclusive_one() -> None:
    server = Instance(ID)
    server.claim("parked", exclusive=False)
    version = server.version
    server.resume("nobody")
    server.resume("parked")
    assert server.version == version, "neither is parked"
    server.record(Instance.Faulted, claimant="parked", message="m")
    server.claim("alone", exclusive=True, beside_parked=True)
    with pytest.raises(errors.ClaimedError, match="alone"):
        server.resume("parked")
    server.release("alone")
    server.resume("parked")
    assert not server.claims["parked"].parked
    assert facts(server, "faults") == {"faults": {"parked": "m"}}, "until it is over"
    server.release("parked")
    assert (server.claims, server.faults) == ({}, {})
