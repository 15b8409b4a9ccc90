"""A lane keeps what is known of its two sides apart, in memory, in the log and on the wire."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.shared.contract.lane import Lane, LaneSide, stored
from host_agent.shared.contract.wire import WireError, plain, read

ids = st.sampled_from(["a", "b", "c"])
maybe = st.none() | ids
disks = st.none() | st.just({"path": "/dev/x"})
sides = st.builds(
    LaneSide, volume_id=st.just("") | ids, attachment_id=maybe, host=maybe, disk=disks
)
lanes = st.builds(
    Lane,
    server_id=ids,
    volume_id=st.just("") | ids,
    bdm_id=ids,
    attachment_id=maybe,
    device_name=maybe,
    multiattach=st.booleans(),
    tag=maybe,
    boot_index=st.none() | st.integers(-1, 3),
    delete_on_termination=st.booleans(),
    serial=maybe,
    host=maybe,
    disk=disks,
    legacy=st.booleans(),
    known=st.lists(ids).map(tuple),
    create=st.none() | st.just({"size_gb": 1}),
    new=st.none() | sides,
)


def lane(**more: Any) -> Lane:
    known: dict[str, Any] = {"attachment_id": "old", "device_name": "vdb", "host": "here"}
    return Lane(server_id="s", volume_id="v", bdm_id="b", **{**known, **more})


@given(lanes)
def test_a_lane_survives_storage_and_so_does_each_side_the_wire(given_lane: Lane) -> None:
    assert read(stored(plain(given_lane)), Lane) == given_lane
    for new in (False, True):
        side = given_lane.side(new=new)
        assert read(plain(side), Lane) == side
        assert side.new is None, "a command is about one side"
        assert side.volume_id == given_lane.volume_of(new=new)


def test_a_lane_is_read_as_the_first_version_stored_it() -> None:
    first = {
        "server_id": "s",
        "volume_id": "v",
        "bdm_id": "b",
        "attachment_id": "old",
        "device_name": "vdb",
        "multiattach": False,
        "tag": None,
        "boot_index": None,
        "delete_on_termination": False,
    }
    assert read(first, Lane) == lane(host=None)
    moving = read({**first, "new": {"host": "there"}, "unknown": 1}, Lane)
    assert moving == lane(host=None, new=LaneSide(host="there"))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"multiattach": 1}, "Expected `bool`, got `int` - at `$.multiattach`"),
        ({"boot_index": True}, "Expected `int | null`, got `bool` - at `$.boot_index`"),
        ({"volume_id": None}, "Expected `str`, got `null` - at `$.volume_id`"),
        ({"known": "all"}, "Expected `array`, got `str` - at `$.known`"),
        ({"new": "there"}, "Expected `object | null`, got `str` - at `$.new`"),
    ],
)
def test_a_lane_of_another_form_is_refused_by_name(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=re.escape(complaint)):
        read({**plain(lane()), **wrong}, Lane)


@pytest.mark.parametrize("name", ["server_id", "bdm_id", "attachment_id"])
def test_a_lane_that_lacks_something_is_refused_by_name(name: str) -> None:
    wire = plain(lane())
    del wire[name]
    with pytest.raises(WireError, match=f"missing required field `{name}`"):
        read(wire, Lane)


def test_each_side_of_a_move_sees_itself_and_the_other() -> None:
    moving = lane(new=LaneSide(attachment_id="young", host="there"))
    current = LaneSide(volume_id="v", attachment_id="old", host="here")
    coming = LaneSide(volume_id="v", attachment_id="young", host="there")
    for new, mine, other in ((False, current, coming), (True, coming, current)):
        side = moving.side(new=new)
        shown = LaneSide(**{name: getattr(side, name) for name in LaneSide.__dataclass_fields__})
        assert (shown, side.other) == (mine, other)


def test_each_side_of_a_swap_has_a_volume_of_its_own() -> None:
    swapped = lane(new=LaneSide(volume_id="w"))
    assert [swapped.volume_of(new=new) for new in (False, True)] == ["v", "w"]
    assert [swapped.side(new=new).volume_id for new in (False, True)] == ["v", "w"]
    assert swapped.volume_ids == {"v", "w"}


def test_what_a_step_finds_out_is_known_of_its_side_alone_but_for_the_device_name() -> None:
    found = {"attachment_id": "x", "volume_id": "y", "disk": {}, "device_name": "vdc", "else": 1}
    moving = lane(new=LaneSide(host="there"))
    learnt = LaneSide(volume_id="y", attachment_id="x", host="there", disk={})
    assert moving.learn(found, new=True) == lane(device_name="vdc", new=learnt)
    assert moving.learn(found) == Lane(
        server_id="s",
        volume_id="y",
        bdm_id="b",
        attachment_id="x",
        device_name="vdc",
        host="here",
        disk={},
        new=LaneSide(host="there"),
    )
    assert moving.learn({"else": 1}, new=True) is moving


def test_a_volume_that_is_made_is_that_of_both_sides() -> None:
    booting = Lane(
        server_id="s",
        volume_id="",
        bdm_id="b",
        attachment_id=None,
        device_name="vda",
        new=LaneSide(host="there"),
    )
    made = booting.learn({"volume_id": "made"})
    assert (made.side(new=False).volume_id, made.side(new=True).volume_id) == ("made", "made")
    assert made.volume_ids == {"made"}
