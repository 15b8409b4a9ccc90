"""What a look makes of hosts: whom it believes, what it finds there, and when that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from host_agent.shared.contract.survey import ConnectionShown, StorageShown
from tests.store.looking import HOST, Cloud

OTHER = "compute-2"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.reconcile.hosts.ANSWER_S", 0.5)


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    cloud.host()
    return cloud


def looked(cloud: Cloud, *hosts: str, scope: Mapping[str, str] | None = None, **more: Any) -> Any:
    with cloud.answering(*hosts, **more):
        return cloud.look(**(scope or {}))


def left(cloud: Cloud) -> None:
    """A connection of an attachment that nobody knows."""
    cloud.connections.setdefault(HOST, []).append(
        ConnectionShown(
            attachment_id="a" * 8 + "-0000-4000-8000-000000000000",
            volume_id=cloud.model.add_volume().id,
            server_id=cloud.server(),
            serial="a" * 8 + "-0000-4000-8000-000000000001",
            present=True,
        )
    )
    cloud.db.execute("DELETE FROM instances")


# --- many at once --------------------------------------------------------------------------------


def test_guests_that_vanished_with_their_hosts_disk_are_confirmed_once_somebody_says_so(
    cloud: Cloud,
) -> None:
    """And those of a host that says nothing are not missing, whatever is believed."""
    servers = {cloud.server() for _ in range(11)}
    cloud.host("silent")
    cloud.server("silent")
    assert looked(cloud, HOST).braked == {"guest_missing": 11}
    with cloud.answering(HOST):
        ended = cloud.believing("guest_missing")
    assert (ended.found, set(ended.unknown)) == ({"guest_missing": 11}, {"silent"})
    cloud.later()
    looked(cloud, HOST)
    cloud.projected()
    rows = cloud.db.execute("SELECT server_id, state FROM findings").fetchall()
    assert {str(row["server_id"]) for row in rows} == servers
    assert {row["state"] for row in rows} == {"confirmed"}


# --- who is believed -----------------------------------------------------------------------------


def test_a_host_that_does_not_answer_is_unknown_and_nothing_is_found_there(cloud: Cloud) -> None:
    cloud.attached()
    ended = cloud.look()
    assert set(ended.unknown) == {HOST}
    assert "not answered" in ended.unknown[HOST]
    assert (ended.outcome, ended.found) == ("completed", {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE hosts SET fenced = true", "fenced"),
        ("UPDATE host_contact SET seen_at = now() - interval '1 hour'", "silent"),
        ("UPDATE hosts SET capabilities = '{}'", "version"),
    ],
    ids=["fenced", "silent", "old"],
)
def test_whom_nobody_can_ask_is_unknown(cloud: Cloud, change: str, why: str) -> None:
    cloud.shows(cloud.attached())
    cloud.db.execute(change)
    ended = looked(cloud)
    assert why in ended.unknown[HOST]
    assert ended.found == {}


def test_what_a_host_could_not_look_at_is_unknown(cloud: Cloud) -> None:
    cloud.attached()
    ended = looked(cloud, blind=("guests",), why_blind=("libvirt is down",))
    assert "libvirt is down" in ended.unknown[HOST]
    assert ended.found == {"connection_missing": 1}


def test_an_older_survey_is_not_taken_for_an_answer(cloud: Cloud) -> None:
    looked(cloud)
    cloud.attached()
    ended = cloud.look()
    assert set(ended.unknown) == {HOST}
    assert ended.found == {}


# --- what is found -------------------------------------------------------------------------------


def test_a_guest_and_a_connection_that_a_host_lacks_are_found(cloud: Cloud) -> None:
    cloud.attached()
    ended = looked(cloud)
    assert ended.found == {"guest_missing": 1, "connection_missing": 1}


def test_a_guest_that_is_elsewhere_is_found_by_the_survey_of_that_host(cloud: Cloud) -> None:
    cloud.host(OTHER)
    row = cloud.attached()
    cloud.shows(row)
    cloud.guests[OTHER] = list(cloud.guests[HOST])
    found = looked(cloud, HOST, OTHER).found
    assert found == {"guest_elsewhere": 1, "guest_twice": 1}


def test_a_guest_of_a_deleted_server_is_found_once_however_many_hosts_show_it(
    cloud: Cloud,
) -> None:
    cloud.host(OTHER)
    row = cloud.attached()
    cloud.shows(row)
    cloud.guests[OTHER] = list(cloud.guests[HOST])
    cloud.connections.clear()
    for table in ("mappings", "attachments"):
        cloud.db.execute(f"DELETE FROM {table}")
    cloud.db.execute("UPDATE instances SET deleted = true")
    cloud.model.drop_attachment(row.id)
    assert looked(cloud, HOST, OTHER).found == {"guest_of_deleted": 1, "guest_twice": 1}
    assert looked(cloud, HOST, OTHER).found == {}


def test_a_server_that_is_resized_is_to_be_on_two_hosts(cloud: Cloud) -> None:
    cloud.host(OTHER)
    cloud.shows(cloud.attached())
    cloud.guests[OTHER] = [replace(each, disks=()) for each in cloud.guests[HOST]]
    cloud.db.execute("UPDATE instances SET resize_source = %s", (OTHER,))
    assert looked(cloud, HOST, OTHER).found == {"guest_twice": 1}
    cloud.guests[OTHER] = []
    assert looked(cloud, HOST, OTHER).found == {"guest_missing": 1}


def test_what_a_host_tells_that_is_no_id_is_passed_over(cloud: Cloud) -> None:
    row = cloud.attached()
    cloud.shows(row)
    cloud.connections[HOST].append(
        replace(cloud.connections[HOST][0], attachment_id="'; DROP", volume_id="x")
    )
    assert looked(cloud).found == {}


# --- two looks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("life", [{}, {"boot_id": "another"}], ids=["same", "rebooted"])
def test_a_second_look_at_the_same_life_of_the_host_confirms(
    cloud: Cloud, life: dict[str, Any]
) -> None:
    left(cloud)
    assert looked(cloud).found == {"connection_left": 1}
    cloud.later()
    looked(cloud, **life)
    assert cloud.states() == {"connection_left": "suspected" if life else "confirmed"}


def test_what_a_host_does_not_show_any_more_is_gone(cloud: Cloud) -> None:
    left(cloud)
    looked(cloud)
    cloud.projected()
    cloud.connections.clear()
    looked(cloud)
    assert cloud.states() == {"connection_left": "over"}


@pytest.mark.parametrize("how", ["silent", "blind"])
def test_what_nobody_could_look_at_is_not_gone(cloud: Cloud, how: str) -> None:
    left(cloud)
    looked(cloud)
    cloud.projected()
    cloud.connections.clear()
    if how == "silent":
        cloud.look()
    else:
        looked(cloud, blind=("connections",), why_blind=("no records",))
    assert cloud.states() == {"connection_left": "suspected"}


def test_a_guest_that_is_back_is_missing_no_more(cloud: Cloud) -> None:
    row = cloud.attached()
    looked(cloud)
    cloud.projected()
    cloud.shows(row)
    looked(cloud)
    assert cloud.states() == {"guest_missing": "over", "connection_missing": "over"}


def test_what_a_host_showed_of_a_server_that_is_elsewhere_by_now_is_that_hosts_to_end(
    cloud: Cloud,
) -> None:
    """The former one shows no such disk any more, which says nothing of the guest."""
    cloud.host(OTHER)
    row = cloud.attached()
    cloud.shows(row, recorded=False)
    looked(cloud)
    cloud.db.execute("UPDATE instances SET host = %s", [OTHER])
    cloud.guests[HOST].clear()
    looked(cloud)
    assert cloud.states()["disk_source_differs"] == "suspected"


def test_what_a_host_lacked_of_a_server_is_over_once_the_server_is_deleted(cloud: Cloud) -> None:
    """Its row stays in the ledger, and names the host that it had."""
    row = cloud.attached()
    looked(cloud)
    assert cloud.states() == {"guest_missing": "suspected", "connection_missing": "suspected"}
    cloud.model.drop_attachment(row.id)
    for table in ("mappings", "attachments"):
        cloud.db.execute(f"DELETE FROM {table}")
    cloud.db.execute("UPDATE instances SET deleted = true")
    looked(cloud)
    assert cloud.states()["guest_missing"] == "over"


def _novas(cloud: Cloud) -> None:
    for table in ("instances", "mappings", "attachments"):
        cloud.db.execute(f"UPDATE {table} SET origin = 'nova'")


def test_what_stayed_novas_on_an_adopted_host_lacks_no_record_and_leaves_no_secret(
    cloud: Cloud,
) -> None:
    row = cloud.attached()
    cloud.shows(row)
    cloud.connections.clear()
    cloud.secrets[HOST] = [row.volume_id]
    _novas(cloud)
    assert looked(cloud).found == {}


def test_what_was_found_on_a_host_that_was_handed_back_is_over(cloud: Cloud) -> None:
    cloud.attached()
    looked(cloud)
    cloud.projected()
    assert cloud.states() == {"guest_missing": "suspected", "connection_missing": "suspected"}
    _novas(cloud)
    cloud.db.execute("UPDATE hosts SET deleted = NULL")  # as a process of 0.2.0 writes it
    cloud.look()
    assert set(cloud.states().values()) == {"suspected"}
    cloud.db.execute("DELETE FROM hosts")
    cloud.look()
    assert cloud.states() == {"guest_missing": "over", "connection_missing": "over"}


SESSION = StorageShown(kind="iscsi_session", name="iqn.x", recorded=False, used=False)


def test_what_the_agent_is_at_explains_storage_that_nobody_knows(cloud: Cloud) -> None:
    """It connects, or disconnects: there is no record yet, or none any more."""
    cloud.db.execute(
        "INSERT INTO mailbox (operation_id, run, host, position, command)"
        " VALUES (gen_random_uuid(), 1, %s, 0, '{}')",
        (HOST,),
    )
    ended = looked(cloud, storage=(SESSION,))
    assert (ended.found, ended.in_flight) == ({}, 1)


def test_storage_of_the_host_that_is_over_is_gone(cloud: Cloud) -> None:
    assert looked(cloud, storage=(SESSION,)).found == {"storage_left": 1}
    looked(cloud)
    assert cloud.states() == {"storage_left": "over"}


# --- parts ---------------------------------------------------------------------------------------


def test_a_look_at_a_server_asks_its_host_and_tells_of_no_other_server(cloud: Cloud) -> None:
    cloud.host(OTHER)
    here, beside = cloud.attached(), cloud.attached()
    ended = looked(cloud, scope={"server": str(here.instance)})
    assert ended.found == {"guest_missing": 1, "connection_missing": 1}
    assert cloud.findings()["guest_missing"]["server_id"] == here.instance
    wanted = cloud.db.execute("SELECT host FROM surveys").fetchall()
    assert [row["host"] for row in wanted] == [HOST]
    assert looked(cloud, scope={"volume": beside.volume_id}).found == {"connection_missing": 1}


def test_a_look_at_a_host_tells_of_what_is_there(cloud: Cloud) -> None:
    cloud.host(OTHER)
    cloud.attached()
    there = cloud.attached(host=OTHER)
    ended = looked(cloud, HOST, OTHER, scope={"host": OTHER})
    assert ended.found == {"guest_missing": 1, "connection_missing": 1}
    assert cloud.findings()["connection_missing"]["attachment_id"] == there.id
