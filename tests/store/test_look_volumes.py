"""What a look finds of volumes in Cinder: strangers, works that last, failures, other projects."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from host_agent.shared.contract.origin import MADE_FOR
from ledger.trial.cinder.model import legacy as cinder_legacy
from ledger.trial.cinder.model.rows import StoredAttachment
from tests.store.looking import HOST, Cloud


def had(cloud: Cloud, **volume: Any) -> str:
    """A volume that a server has had, and nobody has."""
    row = cloud.attached()
    cloud.db.execute("DELETE FROM mappings WHERE attachment_id = %s", (row.id,))
    gone = "UPDATE attachments SET state = 'deleted' WHERE attachment_id = %s"
    cloud.db.execute(gone, (row.id,))
    cloud.model.drop_attachment(row.id)
    found = cloud.model.volume(row.volume_id)
    found.status, found.attach_status = "available", "detached"
    for name, value in volume.items():
        setattr(found, name, value)
    return found.id


def asked_for(cloud: Cloud) -> list[str]:
    """The calls of Cinder for single things."""
    return [call["call"] for call in cloud.model.recent if call["call"].endswith("_show")]


# --- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [None, str(uuid4())], ids=["nobody's", "a stranger's"])
@pytest.mark.parametrize("status", ["attached", "reserved"])
def test_an_attachment_of_a_stranger_on_a_volume_of_ours_is_found(
    cloud: Cloud, server: str | None, status: str
) -> None:
    mine = cloud.attached()
    host = "elsewhere" if status == "attached" else None
    row = cloud.in_cinder(mine.volume_id, server, status=status, host=host)
    assert cloud.look().found == {"owner_unknown": 1}
    found = cloud.findings()["owner_unknown"]
    assert (found["attachment_id"], str(found["server_id"])) == (row.id, mine.instance)
    assert found["differs"]["cinder"]["server_id"] == server
    assert found["differs"]["cinder"]["host"] == host
    for scope in ({"server": str(mine.instance)}, {"volume": mine.volume_id}):
        cloud.look(**scope)
        assert cloud.states() == {"owner_unknown": "suspected"}, "at once, and not over"
    cloud.later()
    cloud.look(server=str(mine.instance))
    assert cloud.states() == {"owner_unknown": "confirmed"}
    cloud.model.drop_attachment(row.id)
    cloud.look()
    assert cloud.states() == {"owner_unknown": "over"}


def test_a_volume_for_several_may_be_shared_with_strangers_and_costs_no_call(cloud: Cloud) -> None:
    mine = cloud.attached()
    cloud.model.volume(mine.volume_id).multiattach = True
    cloud.in_cinder(mine.volume_id, str(uuid4()), host="elsewhere")
    cloud.in_cinder(cloud.model.add_volume(status="in-use").id, str(uuid4()))  # none of ours
    cloud.attached()
    cloud.model.recent.clear()
    assert cloud.look().found == {}
    assert len(asked_for(cloud)) <= 1  # the canary's
    assert cloud.look(volume=mine.volume_id).found == {}


# --- what old calls made -------------------------------------------------------------------------


def test_what_cinder_refuses_to_show_by_itself_is_found_as_what_it_is(cloud: Cloud) -> None:
    """os-attach by hand, of a volume that is a file: 400 to its GET."""
    cloud.attached()
    server, volume = cloud.server(), cloud.model.add_volume(driver="nfs")
    told = {"instance_uuid": server, "mountpoint": "/dev/vdz", "host_name": HOST}
    cinder_legacy.attach(cloud.model, volume, told)
    assert cloud.look().found == {"attachment_unknown": 1}
    found = cloud.findings()["attachment_unknown"]["differs"]["cinder"]
    assert (found["status"], found["host"], found["mountpoint"]) == ("attached", HOST, "vdz")
    cloud.later()
    cloud.look(volume=volume.id)
    assert cloud.states() == {"attachment_unknown": "confirmed"}


# --- statuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", ["error", "maintenance", "available", "deleting", "creating", "error_deleting"]
)
def test_a_status_that_lets_nobody_have_a_volume_is_found_of_one_that_is_attached(
    cloud: Cloud, status: str
) -> None:
    cloud.attached()
    cloud.model.volume(cloud.attached().volume_id).status = status
    cloud.model.recent.clear()
    assert cloud.look().found == {"volume_status_differs": 1}
    assert cloud.findings()["volume_status_differs"]["differs"]["cinder"]["status"] == status


def test_what_failed_or_lasts_of_a_volume_that_nobody_has_is_found_if_ours_had_it(
    cloud: Cloud,
) -> None:
    cloud.attached()
    cloud.model.add_volume(status="deleting")
    had(cloud, status="error")
    assert cloud.look().found == {}
    had(cloud, status="error_deleting")
    had(cloud, status="deleting")
    assert cloud.look().found == {"volume_status_differs": 1, "volume_stuck": 1}


def test_what_cinder_works_on_is_stuck_when_it_has_changed_nothing_for_hours(cloud: Cloud) -> None:
    volume = cloud.model.volume(cloud.attached().volume_id)
    volume.status = "extending"
    cloud.look()
    cloud.later(minutes=100)
    cloud.look()
    assert cloud.states() == {"volume_stuck": "suspected"}, "not for long enough"
    volume.status = "in-use"
    volume.status = "extending"  # once more, and nobody has looked in between
    cloud.later(minutes=100)
    cloud.look()
    assert cloud.states() == {"volume_stuck": "suspected"}, "it is another work"
    cloud.later(minutes=121)
    cloud.look()
    assert cloud.states() == {"volume_stuck": "confirmed"}
    volume.status = "in-use"
    cloud.look()
    assert cloud.states() == {"volume_stuck": "over"}


@pytest.mark.parametrize("status", ["creating", "deleting", "extending", "error"])
def test_what_an_operation_does_to_a_volume_is_no_finding(cloud: Cloud, status: str) -> None:
    row = cloud.attached()
    cloud.model.volume(row.volume_id).status = status
    cloud.at_work(str(row.instance), row.volume_id)
    ended = cloud.look()
    assert (ended.found, ended.in_flight) == ({}, 1)


# --- projects ------------------------------------------------------------------------------------


def test_a_volume_of_another_project_than_its_server_is_found(cloud: Cloud) -> None:
    cloud.attached(cloud.server(project="another"))
    row: StoredAttachment = cloud.attached()
    assert cloud.look().found == {"volume_project_differs": 1}
    cloud.projected()
    cloud.model.volume(row.volume_id).project_id = "a third"
    assert cloud.look(server=str(row.instance)).found == {"volume_project_differs": 1}
    changes = {
        "UPDATE instances SET project_id = NULL": "suspected",  # nobody has told it
        "DELETE FROM mappings": "over",
    }
    for change, state in changes.items():
        cloud.db.execute(change)
        cloud.look()
        cloud.projected()
        rows = cloud.db.execute("SELECT state FROM findings WHERE drift_class LIKE 'volume_pro%'")
        assert [each["state"] for each in rows] == [state, state]


ODD = "a\x00\ud800"


@pytest.mark.parametrize("said", ["host", "mountpoint", "server", "metadata"])
def test_nothing_that_a_member_may_say_stops_a_look(cloud: Cloud, said: str) -> None:
    """Whoever may attach a volume gives Cinder any connector, and names any server."""
    mine = cloud.attached()
    if said == "metadata":
        cloud.model.add_volume(metadata={MADE_FOR: ODD})
    elif said == "server":
        cloud.in_cinder(mine.volume_id, ODD)
    else:
        cloud.in_cinder(mine.volume_id, str(mine.instance), **{said: ODD})
    classes = {"metadata": "volume_of_nobody", "server": "owner_unknown"}
    assert cloud.look().found == {classes.get(said, "attachment_unknown"): 1}
    assert cloud.states() == {classes.get(said, "attachment_unknown"): "suspected"}
