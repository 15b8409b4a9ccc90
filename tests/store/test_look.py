"""A look at everything: what is found, what is believed, and what explains a difference."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from aggregates.finding import Finding
from ledger.trial.cinder.model.rows import StoredAttachment
from tests.store.looking import HOST, OWN_PROJECT, Cloud
from tests.world import CONTEXT


def lose(cloud: Cloud, row: StoredAttachment) -> None:
    """Somebody deletes it from Cinder, and its volume looks as before: others have it, too."""
    cloud.model.drop_attachment(row.id)
    cloud.model.volume(row.volume_id).multiattach = True
    other = StoredAttachment(id=row.id.replace("4", "5"), volume_id=row.volume_id, instance=None)
    other.status = "attached"
    cloud.model.put_attachment(other)
    cloud.model.volume(row.volume_id).status = "in-use"


def lost(cloud: Cloud) -> StoredAttachment:
    """An attachment that Cinder has lost, among others."""
    cloud.attached()
    row = cloud.attached()
    lose(cloud, row)
    return row


def test_a_cloud_that_agrees_has_no_findings(cloud: Cloud) -> None:
    cloud.host()
    for _ in range(3):
        cloud.shows(cloud.attached())
    with cloud.answering():
        ended = cloud.look()
    assert (ended.outcome, ended.found, ended.unknown) == ("completed", {}, {})
    assert ended.compared == {
        "attachment": 3,
        "volume": 3,
        "server": 3,
        "disk": 3,
        "connection": 3,
    }
    assert cloud.findings() == {}


# --- two looks -----------------------------------------------------------------------------------


def test_one_look_suspects_and_a_second_one_confirms(cloud: Cloud) -> None:
    row = lost(cloud)
    assert cloud.look().found == {"attachment_lost": 1}
    found = cloud.findings()["attachment_lost"]
    assert (found["state"], found["volume_id"]) == ("suspected", row.volume_id)
    cloud.later()
    assert cloud.confirmed == []
    assert cloud.look().found == {}
    assert cloud.states() == {"attachment_lost": "confirmed"}
    cloud.look()
    assert cloud.confirmed == [str(found["finding_id"])], "once, and who repairs hears of it"


def test_a_second_look_that_comes_too_soon_does_not_confirm(cloud: Cloud) -> None:
    lost(cloud)
    cloud.look()
    cloud.projected()
    cloud.look()
    assert cloud.states() == {"attachment_lost": "suspected"}


def test_what_happened_between_two_looks_makes_it_another_difference(cloud: Cloud) -> None:
    row = lost(cloud)
    cloud.look()
    cloud.later()
    cloud.happens(row.volume_id)
    cloud.look()
    assert cloud.states() == {"attachment_lost": "suspected"}
    cloud.later()
    cloud.look()
    assert cloud.states() == {"attachment_lost": "confirmed"}


def test_what_nobody_has_any_more_is_gone(cloud: Cloud) -> None:
    row = lost(cloud)
    cloud.look()
    cloud.projected()
    cloud.model.put_attachment(row)
    cloud.look()
    assert cloud.states() == {"attachment_lost": "over"}


def test_what_neither_ledger_nor_cinder_has_any_more_is_gone(cloud: Cloud) -> None:
    cloud.attached()
    server, volume = cloud.server(), cloud.model.add_volume(status="reserved").id
    row = cloud.in_cinder(volume, server, status="reserved", host=None)
    cloud.look()
    assert cloud.states() == {"reservation_unknown": "suspected"}
    told = cloud.findings()["reservation_unknown"]["differs"]["cinder"]
    assert "server_id" not in told, "the finding itself is about the server"
    cloud.model.drop_attachment(row.id)
    cloud.look()
    assert cloud.states() == {"reservation_unknown": "over"}


def test_what_is_ignored_until_a_moment_is_heeded_after_it(cloud: Cloud) -> None:
    lost(cloud)
    cloud.look()
    [row] = cloud.findings().values()
    finding = cloud.ledger.load(Finding, UUID(row["finding_id"]))
    finding.record(Finding.DriftIgnored, reason="later", until=2.0**33)
    cloud.ledger.save(finding, context=CONTEXT)
    cloud.projected()
    cloud.look()
    assert cloud.states() == {"attachment_lost": "ignored"}
    finding.record(Finding.DriftIgnored, reason="not any more", until=1.0)
    cloud.ledger.save(finding, context=CONTEXT)
    cloud.projected()
    cloud.look()
    assert cloud.states() == {"attachment_lost": "suspected"}


# --- what explains a difference ------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "parked"])
def test_what_an_operation_works_on_is_in_flight(cloud: Cloud, state: str) -> None:
    row = lost(cloud)
    cloud.at_work(str(row.instance), row.volume_id, state)
    ended = cloud.look()
    assert (ended.found, ended.in_flight) == ({}, 1)


def test_an_operation_that_is_over_explains_nothing(cloud: Cloud) -> None:
    row = lost(cloud)
    cloud.at_work(str(row.instance), row.volume_id, "finished")
    assert cloud.look().found == {"attachment_lost": 1}


def test_an_operation_on_another_volume_of_the_server_explains_nothing(cloud: Cloud) -> None:
    row = lost(cloud)
    cloud.at_work(str(row.instance), cloud.model.add_volume().id)
    assert cloud.look().found == {"attachment_lost": 1}


@pytest.mark.parametrize("at", ["own_project", "attachments", "volumes"])
def test_what_happened_since_the_look_began_explains_a_difference(
    cloud: Cloud, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = lost(cloud)
    real = getattr(cloud.lists, at)
    happened: list[str] = []

    def asked(*args: Any) -> Any:
        if not happened:
            happened.append(at)
            cloud.happens(row.volume_id)
        return real(*args)

    monkeypatch.setattr(cloud.lists, at, asked)
    ended = cloud.look()
    assert happened
    assert (ended.found, ended.in_flight) == ({}, 1)


def test_a_volume_that_is_being_made_is_nobodys_yet_and_no_drift(cloud: Cloud) -> None:
    cloud.attached()
    volume = cloud.model.add_volume(metadata={"attachment_ledger": "mark"})
    cloud.at_work(cloud.server(), cloud.model.add_volume().id)
    cloud.db.execute("""UPDATE operations SET lanes = '[{"bdm_id": "mark"}]'""")
    assert (cloud.look().found, volume.status) == ({}, "available")
    cloud.db.execute("UPDATE operations SET state = 'finished'")
    assert cloud.look().found == {"volume_of_nobody": 1}
    about = "SELECT f.server_id = o.server_id AS so FROM findings AS f, operations AS o"
    assert cloud.states() == {"volume_of_nobody": "suspected"}
    assert cloud.db.execute(about).fetchall() == [{"so": True}], "its repair needs a server"


def test_attachments_of_the_old_calls_are_theirs_and_not_unknown(cloud: Cloud) -> None:
    cloud.attached()
    row = cloud.attached()
    cloud.db.execute(
        "UPDATE attachments SET legacy = true, attachment_id = gen_random_uuid()"
        " WHERE attachment_id = %s",
        (row.id,),
    )
    assert set(cloud.look().found) <= {"legacy_mapping", "attachment_unmapped"}


# --- whether Cinder is believed ------------------------------------------------------------------


def test_who_lacks_the_admin_role_is_told_so_and_finds_nothing(cloud: Cloud) -> None:
    lost(cloud)
    cloud.model.without_admin_role.add("attachment-ledger")
    ended = cloud.look()
    assert (ended.outcome, ended.found, cloud.findings()) == ("void", {}, {})
    assert "admin role" in str(ended.trouble)


def test_to_see_its_own_project_is_not_to_see_all(cloud: Cloud) -> None:
    row = cloud.attached(cloud.server(project=OWN_PROJECT))
    cloud.model.volume(row.volume_id).project_id = OWN_PROJECT
    cloud.attached()
    cloud.model.without_admin_role.add("attachment-ledger")
    assert cloud.look().outcome == "void"


def test_a_look_at_a_part_needs_to_be_believed_as_well(cloud: Cloud) -> None:
    row = lost(cloud)
    cloud.model.without_admin_role.add("attachment-ledger")
    assert cloud.look(volume=row.volume_id).outcome == "void"


def test_the_only_attachment_may_be_lost_if_its_volume_is_shown(cloud: Cloud) -> None:
    row = cloud.attached()
    lose(cloud, row)
    assert cloud.look().found == {"attachment_lost": 1}


@pytest.mark.parametrize("call", ["attachment_list", "volume_list"])
def test_lists_that_are_cut_open_no_finding(cloud: Cloud, call: str) -> None:
    """Each page lacks its half, and the last row is never shown."""
    for _ in range(7):
        cloud.attached()
    cloud.cinder.faults.replace([{"call": call, "do": "cut", "count": None, "skip": 1}])
    ended = cloud.look()
    assert (ended.outcome, ended.found) == ("completed", {})


def test_a_list_that_lacks_much_of_what_cinder_has_is_believed_in_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(cloud, next(row for row in [cloud.attached() for _ in range(12)]))
    monkeypatch.setattr(type(cloud.lists), "attachments", lambda *_: [])
    ended = cloud.look()
    assert (ended.outcome, ended.found) == ("void", {})
    assert "they are cut" in str(ended.trouble)


def test_a_cinder_that_refuses_ends_the_look(cloud: Cloud) -> None:
    lost(cloud)
    cloud.cinder.faults.replace(
        [{"call": "volume_list", "do": "fail", "status": 403, "message": "no", "count": None}]
    )
    ended = cloud.look()
    assert (ended.outcome, ended.trouble, ended.found) == ("void", "no", {})


def test_a_404_that_is_not_cinders_is_no_absence(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's page for a backend that it has lost."""
    row = cloud.attached()
    cloud.attached()
    monkeypatch.setattr(
        "ledger.trial.cinder.server.error_response", lambda *_: _page_of_a_gateway(), raising=True
    )
    cloud.cinder.faults.replace(
        [{"call": "attachment_show", "do": "fail", "status": 404, "count": None}]
    )
    cloud.model.attachments[row.id].status = "error_attaching"  # so that it is asked for
    assert cloud.look(volume=row.volume_id).found == {}


def _page_of_a_gateway() -> Any:
    from aiohttp import web

    return web.Response(status=404, text="<html>no backend</html>")


# --- the brake -----------------------------------------------------------------------------------


def test_too_many_new_findings_of_a_class_are_counted_and_not_believed(cloud: Cloud) -> None:
    for row in [cloud.attached() for _ in range(12)][:11]:
        lose(cloud, row)
    extra = cloud.attached(status="attaching")
    ended = cloud.look()
    assert (ended.outcome, ended.braked) == ("completed", {"attachment_lost": 11})
    assert ended.found == {"attachment_status_differs": 1}
    assert cloud.findings()["attachment_status_differs"]["attachment_id"] == extra.id


def test_ten_of_a_class_are_believed(cloud: Cloud) -> None:
    for row in [cloud.attached() for _ in range(12)][:10]:
        lose(cloud, row)
    ended = cloud.look()
    assert (ended.found, ended.braked) == ({"attachment_lost": 10}, {})


def test_findings_that_are_known_already_are_no_reason_to_brake(cloud: Cloud) -> None:
    rows = [cloud.attached() for _ in range(14)]
    for row in rows[:10]:
        lose(cloud, row)
    cloud.look()
    cloud.later()
    lose(cloud, rows[10])
    ended = cloud.look()
    assert (ended.found, ended.braked) == ({"attachment_lost": 1}, {})
    cloud.projected()
    found = cloud.db.execute("SELECT state, count(*) AS n FROM findings GROUP BY 1").fetchall()
    assert {row["state"]: row["n"] for row in found} == {"confirmed": 10, "suspected": 1}


def test_what_is_held_back_is_counted_and_some_of_it_is_named(cloud: Cloud) -> None:
    rows = [cloud.attached() for _ in range(12)]
    for row in rows[:11]:
        lose(cloud, row)
    ended = cloud.look()
    [named] = ended.examples.values()
    assert len(named) == 3
    assert set(named) < {f"{row.id} on {HOST}" for row in rows}
    assert cloud.findings() == {}


def test_what_somebody_believes_is_found_and_the_next_look_confirms_it_unasked(
    cloud: Cloud,
) -> None:
    for row in [cloud.attached() for _ in range(25)][:24]:  # more than are asked for one by one
        lose(cloud, row)
    assert cloud.look().braked == {"attachment_lost": 24}
    ended = cloud.believing("attachment_lost")
    assert (ended.found, ended.braked, ended.examples) == ({"attachment_lost": 24}, {}, {})
    cloud.later()
    cloud.look()
    cloud.projected()
    found = cloud.db.execute("SELECT state, count(*) AS n FROM findings GROUP BY 1").fetchall()
    assert found == [{"state": "confirmed", "n": 24}]


def test_to_believe_one_class_is_not_to_believe_another(cloud: Cloud) -> None:
    rows = [cloud.attached() for _ in range(24)]
    for row in rows[:11]:
        lose(cloud, row)
    for row in rows[11:22]:
        cloud.model.attachments[row.id].status = "attaching"
    ended = cloud.believing("attachment_lost")
    assert ended.found == {"attachment_lost": 11}
    assert ended.braked == {"attachment_status_differs": 11}


def test_to_believe_a_class_is_not_to_believe_a_list_that_lacks_all(cloud: Cloud) -> None:
    for _ in range(12):
        cloud.attached()
    cloud.model.without_admin_role.add("attachment-ledger")
    ended = cloud.believing("attachment_lost")
    assert (ended.outcome, ended.found, cloud.findings()) == ("void", {}, {})


# --- what Cinder tells in two lists --------------------------------------------------------------


def test_the_host_that_cinder_names_is_compared(cloud: Cloud) -> None:
    cloud.attached()
    row = cloud.attached()
    cloud.model.attachments[row.id].host = "elsewhere"
    assert cloud.look().found == {"attachment_host_differs": 1}
    found = cloud.findings()["attachment_host_differs"]["differs"]
    assert (found["ledger"]["host"], found["cinder"]["host"]) == (HOST, "elsewhere")


def test_the_name_of_a_disk_is_compared_if_both_say_one(cloud: Cloud) -> None:
    for mountpoint in ("na", "", "/dev/vdz"):
        row = cloud.attached()
        cloud.model.attachments[row.id].mountpoint = mountpoint
        cloud.db.execute(
            "UPDATE mappings SET device_name = 'vdb' WHERE attachment_id = %s", [row.id]
        )
    assert cloud.look().found == {"attachment_mountpoint_differs": 1}
    found = cloud.findings()["attachment_mountpoint_differs"]["differs"]
    assert (found["ledger"]["device"], found["cinder"]["mountpoint"]) == ("vdb", "vdz")


def test_the_mode_is_compared_where_an_attachment_is_asked_for(cloud: Cloud) -> None:
    row = cloud.attached(mode="ro")
    assert cloud.look(server=str(row.instance)).found == {"attachment_mode_differs": 1}


def test_a_volume_that_is_gone_is_found_once_cinder_says_so(cloud: Cloud) -> None:
    cloud.attached()
    row = cloud.attached()
    del cloud.model.volumes[row.volume_id]
    del cloud.model.attachments[row.id]
    found = cloud.look().found
    assert found == {"volume_gone": 1, "attachment_lost": 1}


def test_volumes_that_are_reserved_by_the_ledger_are_not_asked_for_one_by_one(
    cloud: Cloud,
) -> None:
    cloud.attached()
    row = cloud.attached()
    cloud.db.execute(
        "UPDATE attachments SET state = 'reserved', host = NULL WHERE attachment_id = %s",
        (row.id,),
    )
    seen = cloud.model.attachments[row.id]
    seen.status, seen.host = "reserved", None
    cloud.model.volume(row.volume_id).status = "reserved"
    cloud.model.recent.clear()
    assert cloud.look().found == {}
    assert not [call for call in cloud.model.recent if call["call"].endswith("_show")]
