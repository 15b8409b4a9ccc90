"""What a look makes of what disks are, whatever their labels say, and when that is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import UnlabelledShown
from tests.store.looking import HOST, Cloud


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    cloud.host()
    return cloud


def looked(cloud: Cloud, **scope: str) -> Any:
    with cloud.answering(HOST):
        ended = cloud.look(**scope)
    cloud.projected()
    return ended


def shows(cloud: Cloud, **disk: Any) -> None:
    """The first guest's disk is otherwise than before."""
    [guest] = cloud.guests[HOST]
    cloud.guests[HOST] = [replace(guest, disks=(replace(guest.disks[0], **disk),))]


def test_a_disk_on_something_else_is_found_confirmed_and_over(cloud: Cloud) -> None:
    cloud.shows(cloud.attached(), recorded=False, source="/mnt/stray")
    for state in ("suspected", "confirmed"):
        looked(cloud)
        assert cloud.states() == {"disk_source_differs": state}
        cloud.later()
    shows(cloud, recorded=True)
    looked(cloud)
    assert cloud.states() == {"disk_source_differs": "over"}


@pytest.mark.parametrize("part", ["everything", "server", "volume", "host"])
def test_a_guest_that_was_not_told_of_a_growth_is_found_by_each_width_of_look(
    cloud: Cloud, part: str
) -> None:
    row = cloud.attached()
    cloud.model.volumes[row.volume_id].size = 3
    cloud.shows(row, size_bytes=2 * GIB, device_bytes=3 * GIB)
    named = {"server": str(row.instance), "volume": row.volume_id, "host": HOST}
    scope = {} if part == "everything" else {part: named[part]}
    assert looked(cloud, **scope).found == {"disk_size_differs": 1}
    assert cloud.findings()["disk_size_differs"]["differs"]["cinder"] == 3
    shows(cloud, size_bytes=3 * GIB)
    looked(cloud, **scope)
    assert cloud.states() == {"disk_size_differs": "over"}


@pytest.mark.parametrize(
    ("drift_class", "differs", "unsaid"),
    [
        ("disk_source_differs", {"recorded": False}, {"recorded": None}),
        ("disk_size_differs", {"size_bytes": GIB - 1}, {"size_bytes": None}),
    ],
)
def test_what_is_not_said_any_more_is_not_over(
    cloud: Cloud, drift_class: str, differs: dict[str, Any], unsaid: dict[str, Any]
) -> None:
    """A busy guest tells no size."""
    row = cloud.attached()
    cloud.model.volumes[row.volume_id].size = 2
    cloud.shows(row, **differs)
    looked(cloud)
    shows(cloud, **unsaid)
    assert looked(cloud).found == {}
    assert cloud.states() == {drift_class: "suspected"}


def test_a_disk_without_our_label_is_found_and_over_once_it_is_seen_not_to_be_there(
    cloud: Cloud,
) -> None:
    row = cloud.attached()
    cloud.shows(row)
    other = cloud.model.add_volume().id
    disk = UnlabelledShown(target="vdz", source=f"/mnt/volume-{other}", volume_id=other)
    [guest] = cloud.guests[HOST]
    for unlabelled, state in (((disk,), "suspected"), (None, "suspected"), ((), "over")):
        cloud.guests[HOST] = [replace(guest, unlabelled=unlabelled)]
        looked(cloud)
        assert cloud.states() == {"disk_unlabelled": state}, unlabelled
    found = cloud.findings()["disk_unlabelled"]
    assert (found["key"], found["severity"]) == (f"{row.instance}/vdz", "critical")
    assert str(found["volume_id"]) == other


def test_a_disk_without_our_label_is_explained_by_who_works_on_its_volume(cloud: Cloud) -> None:
    row = cloud.attached()
    cloud.shows(row)
    other = cloud.model.add_volume().id
    disk = UnlabelledShown(target="vdz", source=f"/mnt/volume-{other}", volume_id=other)
    [guest] = cloud.guests[HOST]
    cloud.guests[HOST] = [replace(guest, unlabelled=(disk,))]
    cloud.at_work(str(row.instance), other)
    assert looked(cloud).found == {}
