"""`attachment-ledger survey` beside a real Nova and a real Cinder: what is broken by hand is found
under its class, and nothing else; the command that is printed mends it; a cloud at work is clean.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.nova.cloud import NovaCloud, Work, read_only, survey
from tests.lab.settings import ENV

pytestmark = pytest.mark.lab

SOON = ("--apart", "1s", "--stuck", "0s")
#: Of a finding: its class, its volume, its server.
Seen = set[tuple[str, str | None, str | None]]


def seen(rows: list[dict[str, Any]]) -> Seen:
    return {(row["Class"], row["Volume"], row["Server"]) for row in rows}


# --- what is broken -----------------------------------------------------------------------------


def server_is_deleted(cloud: NovaCloud) -> Seen:
    """Nova leaves an attachment that it did not make."""
    server, volume = cloud.server(), cloud.volume()
    cloud.attachment(server, volume, used=True)
    cloud.delete_server(server)
    return {("owner_gone", volume, server)}


def server_never_was(cloud: NovaCloud) -> Seen:
    server, volume = str(uuid.uuid4()), cloud.volume()
    cloud.attachment(server, volume)
    return {("owner_gone", volume, server)}


def reservation(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    cloud.attachment(server, volume)
    return {("reservation_unknown", volume, server)}


def attachment_past_nova(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    cloud.attachment(server, volume, used=True)
    return {("attachment_unknown", volume, server)}


def attachment_pulled(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    cloud.as_service.attachments.delete(cloud.attach(server, volume))
    cloud.wait_status(volume, "available")
    return {("attachment_lost", volume, server)}


def one_of_two_pulled(cloud: NovaCloud) -> Seen:
    """Of a shared volume, as a whole: the other server has it as before."""
    servers, volume = [cloud.server(), cloud.server()], cloud.volume("fake-multi")
    pulled = [cloud.attach(each, volume) for each in servers]
    cloud.as_service.attachments.delete(pulled[0])
    return {("attachment_lost", volume, servers[0])}


def attachment_replaced(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    cloud.as_service.attachments.delete(cloud.attach(server, volume))
    cloud.wait_status(volume, "available")
    cloud.attachment(server, volume, used=True)
    return {("attachment_lost", volume, server), ("attachment_unknown", volume, server)}


def never_completed(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    attachment = cloud.attach(server, volume)
    change = "UPDATE volume_attachment SET attach_status = 'attaching' WHERE id = ?"
    cloud.cinder_row(change, attachment)
    return {("attachment_status_differs", volume, server)}


def on_another_host(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    attachment = cloud.attach(server, volume)
    change = "UPDATE volume_attachment SET attached_host = 'elsewhere' WHERE id = ?"
    cloud.cinder_row(change, attachment)
    return {("attachment_host_differs", volume, server)}


def mapping_lost(cloud: NovaCloud) -> Seen:
    server, volume = cloud.server(), cloud.volume()
    cloud.attach(server, volume)
    change = "UPDATE block_device_mapping SET deleted = id, deleted_at = now()"
    cloud.nova_row(f"{change} WHERE volume_id = '{volume}'")
    return {("attachment_unknown", volume, server)}


def volume_deleted(cloud: NovaCloud) -> Seen:
    """By whoever pulled its attachment first."""
    server, volume = cloud.server(), cloud.volume()
    cloud.as_service.attachments.delete(cloud.attach(server, volume))
    cloud.wait_status(volume, "available")
    cloud.cinder.volumes.delete(volume)
    cloud.wait_volume_gone(volume)
    return {("volume_gone", volume, server)}


def given_to_two(cloud: NovaCloud) -> Seen:
    """A volume that is for one server alone."""
    servers, volume = [cloud.server(), cloud.server()], cloud.volume("fake-multi")
    for each in servers:
        cloud.attach(each, volume)
    cloud.cinder_row("UPDATE volumes SET multiattach = 0 WHERE id = ?", volume)
    return {("attached_twice", volume, min(servers))}


@dataclass(frozen=True)
class Drift:
    broken: Callable[[NovaCloud], Seen]
    mended: bool = True
    options: tuple[str, ...] = SOON


DRIFTS = {
    "server deleted": Drift(server_is_deleted),
    "server never was": Drift(server_never_was),
    "reservation": Drift(reservation),
    "attachment past Nova": Drift(attachment_past_nova),
    "mapping lost": Drift(mapping_lost),
    "attachment pulled": Drift(attachment_pulled),
    "one of two pulled": Drift(one_of_two_pulled),
    "attachment replaced": Drift(attachment_replaced, options=(*SOON, "--every-mapping")),
    "never completed": Drift(never_completed),
    "on another host": Drift(on_another_host, False),
    "volume deleted": Drift(volume_deleted, False),
    "given to two": Drift(given_to_two, False),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_drift_is_found_under_its_class_and_mended_as_printed(cloud: NovaCloud, name: str) -> None:
    drift = DRIFTS[name]
    found_and_mended(cloud, drift.broken(cloud), mended=drift.mended, options=drift.options)


def found_and_mended(
    cloud: NovaCloud, expected: Seen, *, mended: bool = True, options: tuple[str, ...] = SOON
) -> None:
    """`mended`: a command is printed for each, and after these nothing differs."""
    code, rows, words = survey(*options)
    assert (seen(rows), code) == (expected, 8), (rows, words)
    assert all(row["Why"] for row in rows)
    assert [bool(row["Command"]) for row in rows] == [mended] * len(rows)
    if mended:
        for row in rows:
            cloud.openstack(row["Command"])
        cloud.settle()
        code, rows, words = survey(*options)
        assert (rows, code) == ([], 0), words


#: Statuses of a volume that nobody has, and of one that its server has; and what that is.
FREE = {
    **dict.fromkeys(("in-use", "attaching", "detaching", "reserved"), "volume_status_differs"),
    **dict.fromkeys(("error_attaching", "error_detaching"), "volume_status_differs"),
    "error_deleting": "volume_status_differs",
    **dict.fromkeys(("creating", "deleting", "extending", "retyping"), "volume_stuck"),
    "downloading": "volume_stuck",
    **dict.fromkeys(("error", "error_extending"), "volume_failed"),
    **dict.fromkeys(("error_backing-up", "error_restoring"), "volume_failed"),
}
ATTACHED = {
    **dict.fromkeys(("available", "attaching", "detaching", "error"), "volume_status_differs"),
    **dict.fromkeys(("error_attaching", "error_detaching"), "volume_status_differs"),
    "error_extending": "volume_status_differs",
    **dict.fromkeys(("extending", "retyping"), "volume_stuck"),
}


@pytest.mark.parametrize("attached", [False, True])
def test_statuses_that_fit_nothing_are_found_and_mended(cloud: NovaCloud, attached: bool) -> None:
    server = cloud.server() if attached else None
    expected: Seen = set()
    for status, class_ in (ATTACHED if attached else FREE).items():
        volume = cloud.volume()
        if server:
            cloud.attach(server, volume)
        cloud.set_status(volume, status)
        expected.add((class_, volume, server))
    found_and_mended(cloud, expected)


def test_a_server_as_only_a_member_calls_it_is_named_and_nothing_is_said_of_it(
    cloud: NovaCloud,
) -> None:
    """Cinder takes what Python takes for a UUID, and asks Nova for it, which knows none."""
    named = f"urn:{uuid.uuid4().hex}"
    cloud.cinder.attachments.create(cloud.volume(), {}, named)
    code, rows, words = survey(*SOON)
    assert (code, rows) == (0, []), words
    assert named in words


def test_states_that_pass_are_told_once_they_are_old(cloud: NovaCloud) -> None:
    volume = cloud.volume()
    cloud.set_status(volume, "detaching")
    assert survey("--apart", "1s")[:2] == (0, [])
    code, rows, _ = survey(*SOON)
    assert (code, seen(rows)) == (8, {("volume_status_differs", volume, None)})


# --- a cloud at work ----------------------------------------------------------------------------

#: What an administrator does to a server, and the status that it has then.
ACTS: dict[str, dict[str, Any]] = {
    "ACTIVE": {"reboot": {"type": "HARD"}},
    "SHUTOFF": {"os-stop": None},
    "PAUSED": {"pause": None},
    "SUSPENDED": {"suspend": None},
    "SHELVED_OFFLOADED": {"shelve": None},
    "VERIFY_RESIZE": {"migrate": {"host": None}},
}


def test_servers_at_rest_are_clean_whatever_their_status(cloud: NovaCloud) -> None:
    volume = cloud.volume("fake-multi")
    for status, act in ACTS.items():
        server = cloud.server()
        cloud.attach(server, volume)
        cloud.attach(server, cloud.volume())
        cloud.bring(server, status, **act)
    code, rows, words = survey(*SOON, "--every-mapping")
    assert (code, rows) == (0, []), words
    assert f"{len(ACTS)} servers, {2 * len(ACTS) + 1} volumes, {3 * len(ACTS)} attach" in words


def test_a_mapping_of_before_attachments_is_clean(cloud: NovaCloud) -> None:
    """Nova made mappings that name no attachment until Queens."""
    server, volume = cloud.server(), cloud.volume()
    cloud.attach(server, volume)
    change = "UPDATE block_device_mapping SET attachment_id = NULL"
    cloud.nova_row(f"{change} WHERE volume_id = '{volume}'")
    code, rows, words = survey(*SOON, "--every-mapping")
    assert (code, rows) == (0, []), words


def test_a_cloud_at_work_is_clean(cloud: NovaCloud) -> None:
    """Servers are made, given volumes, moved, shelved and deleted while the survey looks."""
    found: list[tuple[int, Any]] = []
    with Work(cloud) as work:
        while work.goes_on():
            found.append(survey("--apart", "3s")[:2])
    assert found == [(0, [])] * len(found)


def test_all_hosts_of_nova_are_asked_by_ssh(cloud: NovaCloud, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho no route >&2; exit 255\n")
    ssh.chmod(0o755)
    cloud.server()
    code, rows, words = survey(*SOON, "--ssh", PATH=f"{tmp_path}:{ENV['PATH']}")
    assert (code, rows) == (0, []), words
    [line] = [each for each in words.splitlines() if ": exit code 255: no route." in each]
    assert all(host in line for host in (ENV["LAB_HOST"], "compute-2"))


# --- who asks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reader", "member"])
def test_who_sees_less_is_told_so(cloud: NovaCloud, name: str) -> None:
    cloud.set_status(cloud.volume(), "in-use")
    code, rows, words = survey(*SOON, "--os-cloud", name)
    assert (code, rows) == (4, [])
    assert "administrator" in words


def test_a_credential_that_may_get_alone_suffices(cloud: NovaCloud) -> None:
    volume = cloud.volume()
    cloud.set_status(volume, "in-use")
    with read_only() as auth:
        env = {f"OS_{name.upper()}": value for name, value in auth.items()}
        code, rows, words = survey(*SOON, **env, OS_CLOUD="")
    assert (code, seen(rows)) == (8, {("volume_status_differs", volume, None)}), words
