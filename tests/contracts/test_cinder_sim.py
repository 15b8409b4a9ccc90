"""The simulated Cinder as a server: API details, old flow, CVE-2023-2088, admin, crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
from cinderclient import client as cinder_client
from cinderclient import exceptions
from cinderclient.contrib import noauth
from keystoneauth1 import session

from ledger.trial.cinder.model.model import CinderModel
from tests.contracts.cinder_compute import running_compute
from tests.contracts.cinder_worlds import FakeTime, client_of, connector, new_uuid
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.running_cinder import RunningCinder, running_cinder

PROJECT = "sim-project"


@pytest.fixture
def running() -> Iterator[RunningCinder]:
    with running_cinder() as served:
        yield served


@pytest.fixture
def user(running: RunningCinder) -> Iterator[Any]:
    """The unmodified cinderclient of somebody who is no service."""
    auth = noauth.CinderNoAuthPlugin("somebody", PROJECT, endpoint=running.endpoint)
    made = session.Session(auth=auth)
    yield cinder_client.Client("3.71", session=made)
    made.session.close()


def connected(running: RunningCinder) -> tuple[str, str, str]:
    """(volume, server, attachment) with a host connected."""
    volume, server = running.model.add_volume().id, new_uuid()
    return volume, server, running.model.attachment_create(volume, server, connector()).id


# --- API details ---------------------------------------------------------------------------------


def test_cinderclient_makes_finds_and_deletes_volumes(user: Any) -> None:
    made = user.volumes.create(size=2, name="mine", volume_type="rbd-multi")
    assert made.status == "creating"
    user.volumes.get(made.id)
    assert user.volumes.get(made.id).status == "available"
    assert user.volumes.find(name="mine").id == made.id
    with pytest.raises(exceptions.NotFound):
        user.volumes.get("mine")
    user.volumes.delete(made.id)
    assert user.volumes.list() == []


@pytest.mark.parametrize(
    ("header", "status"),
    [("volume 3.71", 200), ("volume latest", 200), ("volume 3.72", 406), ("volume x", 400)],
)
def test_microversion_headers(running: RunningCinder, header: str, status: int) -> None:
    headers = {"X-Auth-Token": f"u:{PROJECT}", "OpenStack-API-Version": header}
    answer = requests.get(f"{running.endpoint}/volumes", headers=headers, timeout=5)
    assert answer.status_code == status
    assert answer.headers["Vary"] == "OpenStack-API-Version"


def test_attachments_need_3_27_and_complete_3_44(running: RunningCinder) -> None:
    url = f"{running.endpoint}/attachments/{connected(running)[2]}"
    at = {"X-Auth-Token": f"u:{PROJECT}", "OpenStack-API-Version": "volume 3.26"}
    assert requests.get(url, headers=at, timeout=5).status_code == 404
    at["OpenStack-API-Version"] = "volume 3.43"
    assert requests.get(url, headers=at, timeout=5).status_code == 200
    done = requests.post(f"{url}/action", json={"os-complete": None}, headers=at, timeout=5)
    assert done.status_code == 404


def test_a_token_of_another_project_than_the_urls_is_refused(running: RunningCinder) -> None:
    headers = {"X-Auth-Token": "u:mine"}
    answer = requests.get(f"{running.endpoint}/theirs/volumes", headers=headers, timeout=5)
    assert (answer.status_code, answer.json()["badRequest"]["code"]) == (400, 400)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"attachment": []},
        {"attachment": {}},
        {"attachment": {"volume_uuid": "x"}},
        {"attachment": {"volume_uuid": new_uuid(), "mode": "zz"}},
        {"attachment": {"volume_uuid": new_uuid(), "more": 1}},
        {"attachment": {"volume_uuid": new_uuid(), "instance_uuid": None}},
        {"attachment": {"volume_uuid": new_uuid(), "connector": "x"}},
    ],
)
def test_a_malformed_create_is_400_and_changes_nothing(
    running: RunningCinder, body: dict[str, Any]
) -> None:
    headers = {"X-Auth-Token": f"u:{PROJECT}", "OpenStack-API-Version": "volume 3.71"}
    answer = requests.post(f"{running.endpoint}/attachments", json=body, headers=headers, timeout=5)
    assert answer.status_code == 400
    assert running.model.attachments == {}


def test_a_reserved_attachment_has_mode_null_as_a_string(user: Any, running: RunningCinder) -> None:
    made = user.attachments.create(running.model.add_volume().id, None, new_uuid())
    assert (made["attach_mode"], made["connection_info"]) == ("null", {})
    user.attachments.update(made["id"], connector(mode="ro", mountpoint="/dev/vdb"))
    user.attachments.complete(made["id"])
    assert user.attachments.show(made["id"]).attach_mode == "ro"
    [listed] = user.volumes.get(made["volume_id"]).attachments
    assert (listed["attachment_id"], listed["device"]) == (made["id"], "/dev/vdb")


def test_lists_are_paged_from_the_newest(running: RunningCinder, user: Any) -> None:
    made = [running.model.add_volume(name=name).id for name in "abc"]
    assert [volume.id for volume in user.volumes.list()] == made[::-1]
    page = user.volumes.list(limit=1, marker=made[2])
    assert [volume.id for volume in page] == [made[1]]
    assert user.volumes.list(limit=1, marker=made[0]) == []


# --- a user deletes what is connected (CVE-2023-2088, LP 2004555) --------------------------------


def test_a_user_may_not_delete_what_the_compute_service_confirms(
    running: RunningCinder, user: Any
) -> None:
    volume, server, row = connected(running)
    with running_compute(200, row) as compute:
        running.compute.endpoint = compute.url
        acts: list[Callable[[], object]] = [
            lambda: user.attachments.delete(row),
            lambda: user.volumes.detach(volume, row),
            lambda: user.volumes.terminate_connection(volume, connector()),
        ]
        for act in acts:
            with pytest.raises(exceptions.ClientException) as caught:
                act()
            assert caught.value.code == 409
            assert caught.value.message == (
                "ConflictNovaUsingAttachment: "
                f"Detach volume from instance {server} using the Compute API"
            )
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    told = [(asked.method, asked.path, asked.version, asked.token) for asked in compute.asked]
    assert told == [("GET", path, "compute 2.89", f"somebody:{PROJECT}")] * 3
    assert row in running.model.attachments


@pytest.mark.parametrize(("status", "attachment_id"), [(404, None), (200, "another")])
def test_a_user_may_delete_what_the_compute_service_does_not_know(
    running: RunningCinder, user: Any, status: int, attachment_id: str | None
) -> None:
    _, _, row = connected(running)
    with running_compute(status, attachment_id) as compute:
        running.compute.endpoint = compute.url
        user.attachments.delete(row)
    assert row not in running.model.attachments


@pytest.mark.parametrize(
    ("answer", "seen", "words"),
    [
        (503, 503, "The server is currently unavailable. Please try again at a later time."),
        (409, 409, "There was a conflict when trying to complete your request."),
        (403, 403, "Access was denied to this resource."),
        (500, 500, "The server has either erred or is incapable"),
        (401, 401, "This server could not verify that you are authorized"),
        (418, 500, "The server has either erred or is incapable"),
        (200, 500, "The server has either erred or is incapable"),  # without attachment_id
        (None, 500, "The server has either erred or is incapable"),  # no answer
    ],
)
def test_without_the_compute_services_word_nothing_is_deleted(
    running: RunningCinder, user: Any, answer: int | None, seen: int, words: str
) -> None:
    _, _, row = connected(running)
    with running_compute(answer or 200) as compute:
        running.compute.endpoint = compute.url if answer else "http://127.0.0.1:9"
        with pytest.raises(exceptions.ClientException) as caught:
            user.attachments.delete(row)
    assert caught.value.code == seen
    assert caught.value.message.startswith(words)
    assert row in running.model.attachments


def test_a_user_may_end_an_old_attachment_unasked(running: RunningCinder, user: Any) -> None:
    # Its connection is nowhere in Cinder, so CVE-2023-2088's check does not see one.
    volume, server = running.model.add_volume().id, new_uuid()
    user.volumes.attach(volume, server, "/dev/vdb", host_name="compute-a")
    user.volumes.detach(volume, running.model.attachments_of(volume)[0].id)
    assert user.volumes.get(volume).status == "available"


def test_a_user_may_not_force_detach_what_the_compute_service_confirms(
    running: RunningCinder, user: Any
) -> None:
    volume, _, row = connected(running)
    with running_compute(200, row) as compute:
        running.compute.endpoint = compute.url
        with pytest.raises(exceptions.ClientException) as caught:
            user.volumes._action("os-force_detach", volume, {"attachment_id": row})
    assert caught.value.code == 409
    assert row in running.model.attachments
    assert user.volumes.get(volume).status == "attaching"  # as it was


def test_a_user_may_delete_a_reservation_unasked(running: RunningCinder, user: Any) -> None:
    row = running.model.attachment_create(running.model.add_volume().id, new_uuid())
    user.attachments.delete(row.id)
    assert running.model.attachments == {}


# --- the old flow --------------------------------------------------------------------------------


def test_the_old_flow_from_reserve_to_detach(running: RunningCinder, user: Any) -> None:
    volume, server = running.model.add_volume().id, new_uuid()
    seen: list[str] = []
    steps: list[Callable[[], object]] = [
        lambda: user.volumes.reserve(volume),
        lambda: user.volumes.initialize_connection(volume, connector()),
        lambda: user.volumes.attach(volume, server, "/dev/vdb"),
        lambda: user.volumes.begin_detaching(volume),
        lambda: user.volumes.roll_detaching(volume),
        lambda: user.volumes.begin_detaching(volume),
        lambda: user.volumes.terminate_connection(volume, connector()),
        lambda: user.volumes.detach(volume),
    ]
    for step in steps:
        step()
        seen.append(user.volumes.get(volume).status)
    assert seen == [
        *("attaching", "attaching", "in-use", "detaching", "in-use", "detaching", "detaching"),
        "available",
    ]


def test_what_the_old_flow_allows_on_an_available_volume(running: RunningCinder, user: Any) -> None:
    volume = running.model.add_volume().id
    user.volumes.unreserve(volume)
    user.volumes.roll_detaching(volume)
    info = user.volumes.initialize_connection(volume, connector())
    assert info["driver_volume_type"] == "rbd"
    assert info["data"]["keyring"]
    user.volumes.terminate_connection(volume, connector())
    user.volumes.detach(volume)
    with pytest.raises(exceptions.BadRequest, match="Unable to detach volume"):
        user.volumes.begin_detaching(volume)
    assert user.volumes.get(volume).status == "available"


def test_the_old_reserve_is_refused_on_a_reserved_volume(running: RunningCinder, user: Any) -> None:
    volume = running.model.add_volume().id
    running.model.attachment_create(volume, new_uuid())
    with pytest.raises(exceptions.BadRequest, match="must be available to reserve"):
        user.volumes.reserve(volume)


def test_reset_state_drops_the_attachments(running: RunningCinder, user: Any) -> None:
    # LP 1908075: this is how an operator makes ledger and Cinder differ.
    volume, _, _ = connected(running)
    with pytest.raises(exceptions.BadRequest, match="deleting"):
        user.volumes.reset_state(volume, "deleting")
    user.volumes.reset_state(volume, "available", attach_status="detached")
    assert running.model.attachments == {}
    with pytest.raises(exceptions.BadRequest, match="does not have any attachments"):
        user.volumes.reset_state(volume, "in-use")


# --- the simulation's own endpoints --------------------------------------------------------------


def test_volumes_are_seeded_and_everything_can_be_looked_at(running: RunningCinder) -> None:
    sim = f"{running.url}/sim"
    volume = new_uuid()
    wanted: Any = [{"id": volume, "multiattach": True, "shared_targets": None, "driver": "iscsi"}]
    assert requests.put(f"{sim}/volumes", json=wanted, timeout=5).status_code == 201
    client = client_of(running)
    row = client.attachment_create(volume, new_uuid())
    client.attachment_update(row.id, connector())
    client.close()
    state = requests.get(f"{sim}/state", timeout=5).json()
    assert [found["id"] for found in state["volumes"]] == [volume]
    assert state["attachments"][0]["connection_info"]["auth_password"] in state["secrets"]
    calls = requests.get(f"{sim}/calls", timeout=5).json()
    assert calls["counts"] == {"attachment_create": 1, "attachment_update": 1}
    assert [call["call"] for call in calls["recent"]] == ["attachment_create", "attachment_update"]
    assert calls["recent"][1]["volume_id"] == volume


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"size": "big"}, "'size' is 'big'"),
        ({"driver": "floppy"}, "use one of rbd, iscsi, local"),
        ("a volume", "must be an object"),
    ],
)
def test_a_wrong_seed_is_refused_and_says_why(
    running: RunningCinder, item: Any, complaint: str
) -> None:
    answer = requests.put(f"{running.url}/sim/volumes", json=item, timeout=5)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]
    assert running.model.volumes == {}


def test_faults_are_put_and_read_over_http(running: RunningCinder) -> None:
    url = f"{running.url}/sim/faults"
    rule: Any = {"call": "volume_show", "do": "fail", "status": 409}
    assert requests.put(url, json=[rule], timeout=5).status_code == 200
    assert requests.get(url, timeout=5).json()[0]["seen"] == 0
    bad = requests.put(url, json=[rule, {"call": "volume_show", "do": "explode"}], timeout=5)
    assert bad.status_code == 400
    assert "rule 2: 'do' is 'explode'" in bad.json()["error"]
    assert len(requests.get(url, timeout=5).json()) == 1


def test_a_delay_holds_up_only_the_call_it_strikes(running: RunningCinder) -> None:
    slow, quick = running.model.add_volume().id, running.model.add_volume().id
    rule = {"call": "volume_show", "match": {"volume_id": slow}, "do": "delay", "seconds": 2.0}
    running.faults.replace([rule])
    client = client_of(running)
    thread = Thread(target=client.volume, args=(slow,))
    began = time.monotonic()
    thread.start()
    client.volume(quick)
    assert thread.is_alive()
    thread.join()
    assert time.monotonic() - began >= 2.0
    client.close()


# --- crashes -------------------------------------------------------------------------------------

_SERVER = """
import asyncio, sys
from pathlib import Path
from host_agent.shared.faults import Faults
from ledger.trial.cinder import server
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.store import CinderStore
at = Path(sys.argv[1])
model, store = CinderModel(), CinderStore(at / "state.json")
store.load(model)
faults = Faults.load(at / "faults.json", at / "faults.state")
app = server.make_app(model, store=store, faults=faults)
asyncio.run(server.serve(port=0, app=app, ready=lambda url: print(url, flush=True)))
"""


def start(at: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(at)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_crash_happens_once_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    faults = '[{"call": "attachment_update", "do": "crash_after"}]'
    (tmp_path / "faults.json").write_text(faults)
    volume, headers = new_uuid(), {"X-Auth-Token": "u:p", "OpenStack-API-Version": "volume 3.71"}
    process, url = start(tmp_path)
    try:
        requests.put(f"{url}/sim/volumes", json={"id": volume}, timeout=5).raise_for_status()
        body = {"attachment": {"volume_uuid": volume, "instance_uuid": new_uuid()}}
        made = requests.post(f"{url}/v3/attachments", json=body, headers=headers, timeout=5)
        row = made.json()["attachment"]["id"]
        update = {"attachment": {"connector": connector()}}
        with pytest.raises(requests.ConnectionError):
            requests.put(f"{url}/v3/attachments/{row}", json=update, headers=headers, timeout=5)
        assert process.wait(10) == -signal.SIGKILL
        process.communicate()
        process, url = start(tmp_path)
        shown = requests.get(f"{url}/v3/attachments/{row}", headers=headers, timeout=5).json()
        assert shown["attachment"]["status"] == "attaching"  # done before it crashed
        again = requests.put(f"{url}/v3/attachments/{row}", json=update, headers=headers, timeout=5)
        assert again.status_code == 200
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_cycle_on_the_model_takes_well_under_a_millisecond() -> None:
    port, model = DirectCinder(CinderModel(), retry=FakeTime().retry()), None
    model = port._model
    volumes = [model.add_volume().id for _ in range(200)]
    began = time.process_time()
    for volume in volumes:
        row = port.attachment_create(volume, "server")
        port.attachment_update(row.id, connector())
        port.attachment_complete(row.id)
        port.attachment_delete(row.id)
    assert (time.process_time() - began) / len(volumes) < 0.001
