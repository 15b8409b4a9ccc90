"""The HTTP adapter: microversions, time-outs, broken connections, retries, secrets."""

from __future__ import annotations

import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from host_agent.shared.cinder.calls import Retry
from host_agent.shared.cinder.client import PAGE_ROWS, PAGES_MAX, CinderClient
from host_agent.shared.cinder.session import VERSION_AGE_MAX_S, Dialogue, agree
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.trial.cinder.model.model import CinderModel
from tests.contracts.cinder_worlds import FakeTime, client_of, connector, new_uuid, refusal
from tests.doubles.running_cinder import RunningCinder, running_cinder

ONCE = RetryLimits(attempts_max=1)


@pytest.fixture
def running() -> Iterator[RunningCinder]:
    with running_cinder() as served:
        yield served


@contextmanager
def talking(running: RunningCinder, time_: FakeTime | None = None, **more: Any) -> Iterator[Any]:
    client = client_of(running, time_, **more)
    try:
        yield client
    finally:
        client.close()


class SetBack:
    """The machine's clock, two hours behind where it was; nobody is to wait until it is there."""

    @staticmethod
    def time() -> float:
        return time.time() - 7_200

    @staticmethod
    def sleep(seconds: float) -> None:
        raise AssertionError(f"a call is held for {seconds:.0f} s")


def test_no_call_waits_because_the_clock_was_set_back(
    running: RunningCinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = running.model.add_volume().id
    with talking(running) as client:
        client.volume(volume)
        monkeypatch.setattr("keystoneauth1._fair_semaphore.time", SetBack)
        assert client.volume(volume).status == "available"


# --- microversion and endpoint -------------------------------------------------------------------


@pytest.mark.parametrize("offered", [(3, 43), (3, 26), (3, 0)])
def test_a_cinder_below_3_44_serves_volumes_and_no_attachments(offered: tuple[int, int]) -> None:
    with running_cinder(max_version=offered) as old, talking(old) as client:
        seen = client.volume(old.model.add_volume(shared_targets=False).id)
        assert (seen.shared_targets, seen.service_uuid) == (None, "")
        assert not client.new_flow()
        error = refusal(lambda: client.attachment_complete(new_uuid()))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "cinder_too_old")
    assert "3.44" in error.message


def test_an_upgrade_of_cinder_is_noticed(
    running: RunningCinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_ = FakeTime()
    dialogue = Dialogue(CinderSettings(endpoint=running.endpoint), clock=time_.clock)
    assert dialogue.version() == (3, 71)
    document = {"versions": [{"id": "v3.0", "version": "3.50"}]}
    monkeypatch.setattr(dialogue, "_versions", lambda _root: document)
    time_.sleep(VERSION_AGE_MAX_S - 1)
    assert dialogue.version() == (3, 71)
    time_.sleep(1)
    assert dialogue.version() == (3, 50)
    document["versions"] = []  # it stumbles: what was agreed goes on
    time_.sleep(VERSION_AGE_MAX_S)
    assert dialogue.version() == (3, 50)
    dialogue.close()


@pytest.mark.parametrize(
    "document",
    [{"versions": []}, {"versions": [{"id": "v2.0", "version": "2.0"}]}],
)
def test_no_v3_at_all_is_said_so(document: dict[str, Any]) -> None:
    assert "no API v3" in refusal(lambda: agree(document)).message


def test_a_newer_cinder_is_spoken_to_at_the_newest_known() -> None:
    assert agree({"versions": [{"id": "v3.0", "version": "3.99"}]}) == (3, 71)
    assert agree({"versions": [{"id": "v3.0", "version": "3.50"}]}) == (3, 50)


@pytest.mark.parametrize(
    ("offered", "shared"), [((3, 71), None), ((3, 69), None), ((3, 68), True), ((3, 48), True)]
)
def test_shared_targets_null_is_seen_from_3_69(offered: tuple[int, int], shared: object) -> None:
    # LP 1961102: below, Cinder reports null as true; both mean "take the lock".
    with running_cinder(max_version=offered) as served, talking(served) as client:
        volume = served.model.add_volume(shared_targets=None)
        assert client.volume(volume.id).shared_targets is shared


def test_a_cinder_that_needs_the_project_in_the_url_gets_it() -> None:
    with running_cinder(max_version=(3, 66)) as served, talking(served) as client:
        volume = served.model.add_volume()
        assert client.volume(volume.id).service_uuid


def test_an_endpoint_with_a_project_in_its_path_works(running: RunningCinder) -> None:
    volume = running.model.add_volume()
    client = CinderClient(CinderSettings(endpoint=f"{running.endpoint}/another-project"))
    assert client.volume(volume.id).project_id == "sim-project"
    assert client.attachments(volume.id, new_uuid()) == []
    client.close()


def test_attachments_of_other_projects_are_listed(running: RunningCinder) -> None:
    volume, server = running.model.add_volume(project_id="tenant"), new_uuid()
    with talking(running) as client:
        client.attachment_create(volume.id, server)
        assert len(client.attachments(volume.id, server)) == 1


def test_settings_without_endpoint_and_auth_are_refused() -> None:
    with pytest.raises(ValueError, match="needs an endpoint"):
        CinderClient(CinderSettings())


def test_a_volume_is_available_before_its_service_is_known(running: RunningCinder) -> None:
    volume = running.model.add_volume(available_after_reads=1, service_uuid_after_reads=2)
    with talking(running) as client:
        seen = [client.volume(volume.id) for _ in range(3)]
    assert [(v.status, v.shared_targets, bool(v.service_uuid)) for v in seen] == [
        ("creating", True, False),
        ("available", True, False),
        ("available", False, True),
    ]


# --- paging --------------------------------------------------------------------------------------


def test_all_pages_of_attachments_are_read(running: RunningCinder) -> None:
    volume, server = running.model.add_volume(), new_uuid()
    for _ in range(PAGE_ROWS + 1):
        running.model.attachment_create(volume.id, server)
    with talking(running) as client:
        rows = client.attachments(volume.id, server)
    assert len({row.id for row in rows}) == PAGE_ROWS + 1
    assert running.model.counts["attachment_list"] == 2


def test_the_number_of_pages_is_bounded(running: RunningCinder) -> None:
    volume, server = running.model.add_volume(), new_uuid()
    for _ in range(PAGE_ROWS * PAGES_MAX):
        running.model.attachment_create(volume.id, server)
    with talking(running) as client:
        error = refusal(lambda: client.attachments(volume.id, server))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "too_many_attachments")


# --- no answer -----------------------------------------------------------------------------------


def test_a_call_that_was_done_but_never_answered_is_unknown(running: RunningCinder) -> None:
    volume = running.model.add_volume()
    running.faults.replace([{"call": "attachment_create", "do": "timeout_after"}])
    with talking(running, read_timeout_s=0.1) as client:
        error = refusal(lambda: client.attachment_create(volume.id, new_uuid()))
    assert (error.kind, error.code) == (ErrorKind.UNKNOWN, "cinder_timeout")
    assert len(running.model.attachments) == 1


def test_a_refused_connection_is_retryable_and_was_tried_again() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        time_ = FakeTime()
        endpoint = f"http://127.0.0.1:{reserved.getsockname()[1]}/v3"
        client = CinderClient(CinderSettings(endpoint=endpoint), retry=time_.retry())
        error = refusal(lambda: client.volume(new_uuid()))
        client.close()
    assert (error.kind, error.code) == (ErrorKind.RETRYABLE, "cinder_unavailable")
    assert len(time_.slept) == RetryLimits().attempts_max - 1


@contextmanager
def half_broken(document: bytes) -> Iterator[str]:
    """A server that answers version requests and hangs up on everything else."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                wanted = connection.recv(65536)
                if wanted.startswith((b"GET / ", b"GET /v3/ ")):
                    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    length = str(len(document)).encode()
                    end = b"\r\nConnection: close\r\n\r\n"
                    connection.sendall(head + b"Content-Length: " + length + end + document)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v3"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_a_connection_that_breaks_after_sending_is_unknown() -> None:
    with half_broken(b'{"versions": [{"id": "v3.0", "version": "3.71"}]}') as endpoint:
        client = CinderClient(CinderSettings(endpoint=endpoint))
        error = refusal(lambda: client.attachment_create(new_uuid(), new_uuid()))
        client.close()
    assert (error.kind, error.code) == (ErrorKind.UNKNOWN, "cinder_error")


def test_an_answer_that_cannot_be_read_is_unknown() -> None:
    with half_broken(b"<html>") as endpoint:
        client = CinderClient(CinderSettings(endpoint=endpoint), retry=FakeTime().retry(ONCE))
        error = refusal(lambda: client.volume(new_uuid()))
        client.close()
    assert (error.kind, error.code) == (ErrorKind.UNKNOWN, "cinder_error")


# --- retries -------------------------------------------------------------------------------------


def failing(kind: ErrorKind, code: str = "c") -> Callable[[], None]:
    def call() -> None:
        raise PortError(kind, code, "no")

    return call


def attempts(time_: FakeTime, retry: Retry, call: Callable[[], None], *, repeatable: bool) -> int:
    refusal(lambda: retry.run(call, repeatable=repeatable))
    return len(time_.slept) + 1


def test_delays_double_up_to_the_bound() -> None:
    time_ = FakeTime()
    limits = RetryLimits(attempts_max=7, delay_first_s=1, delay_max_s=8, deadline_s=1000)
    refusal(lambda: time_.retry(limits).run(failing(ErrorKind.RETRYABLE), repeatable=False))
    assert time_.slept == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(("chance", "first"), [(0.0, 0.25), (1.0, 0.5)])
def test_chance_puts_a_delay_between_half_and_all(chance: float, first: float) -> None:
    time_ = FakeTime()
    refusal(lambda: time_.retry(chance=chance).run(failing(ErrorKind.RETRYABLE), repeatable=True))
    assert time_.slept[0] == pytest.approx(first)


def test_no_attempt_begins_after_the_deadline() -> None:
    # X17: bounded; 503 for 20 s is survived with the defaults' deadline of 90 s
    time_ = FakeTime()
    limits = RetryLimits(attempts_max=100, delay_first_s=1, delay_max_s=4, deadline_s=10)
    refusal(lambda: time_.retry(limits).run(failing(ErrorKind.RETRYABLE), repeatable=True))
    assert time_.now <= 10
    assert time_.slept == [1, 2, 4]


@pytest.mark.parametrize(
    ("kind", "code", "repeatable", "tries"),
    [
        (ErrorKind.RETRYABLE, "cinder_unavailable", False, 5),
        (ErrorKind.RETRYABLE, "unauthorized", True, 1),
        (ErrorKind.UNKNOWN, "cinder_error", True, 5),
        (ErrorKind.UNKNOWN, "cinder_error", False, 1),
        (ErrorKind.FINAL, "refused", True, 1),
    ],
)
def test_what_is_tried_again(kind: ErrorKind, code: str, repeatable: bool, tries: int) -> None:
    time_ = FakeTime()
    assert attempts(time_, time_.retry(), failing(kind, code), repeatable=repeatable) == tries


# --- service token -------------------------------------------------------------------------------


def test_our_deletes_are_a_services(running: RunningCinder) -> None:
    # CVE-2023-2088: the compute endpoint is not even asked (it is not there).
    row = running.model.attachment_create(running.model.add_volume().id, new_uuid(), connector())
    with talking(running) as client:
        client.check_service_token()
        client.attachment_delete(row.id)
    assert running.model.attachments == {}


def test_an_attachment_that_the_answer_to_its_deletion_still_lists_is_not_gone(
    running: RunningCinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # LP 1935057: the export could not be removed, and the row is left.
    row = running.model.attachment_create(running.model.add_volume().id, new_uuid(), connector())
    monkeypatch.setattr(running.model, "drop_attachment", lambda _id: None)
    with talking(running) as client:
        assert client.attachment_delete(row.id) is None


def test_without_a_service_token_the_self_check_fails_loudly(running: RunningCinder) -> None:
    # LP 2019892
    with talking(running, service_token=False) as client:
        error = refusal(client.check_service_token)
    assert (error.kind, error.code) == (ErrorKind.FINAL, "no_service_token")


class _Access:
    def __init__(self, *roles: str) -> None:
        self.role_names = list(roles)

    def get_access(self, _session: object) -> _Access:
        return self


@pytest.mark.parametrize(("roles", "ok"), [(("admin", "service"), True), (("admin",), False)])
def test_with_keystone_the_service_tokens_roles_decide(roles: tuple[str, ...], ok: bool) -> None:
    password = "pAsSwOrD-of-nova"
    auth = {"auth_type": "password", "auth_url": "http://127.0.0.1:9", "password": password}
    auth |= {"username": "nova", "project_name": "service", "user_domain_id": "default"}
    settings = CinderSettings(auth=auth)
    client = CinderClient(settings)
    client._dialogue._service_auth = _Access(*roles)
    if ok:
        client.check_service_token()
    else:
        error = refusal(client.check_service_token)
        assert error.code == "no_service_token"
        assert "'service'" in error.message
    assert password not in repr(settings)
    client.close()


def test_who_is_no_administrator_is_not_told_what_was_made_of_a_volume() -> None:
    """Its lists of snapshots and backups have less than there is; that of clones is refused."""
    with running_cinder() as served, talking(served) as client:
        volume = served.model.add_volume(project_id="another")
        served.model.add_snapshot(volume.id)
        assert client.dependents(volume.id).snapshots
        served.model.without_admin_role.add(client.own_user() or "")
        told = client.dependents(volume.id)
        assert (told.snapshots, told.clones) == ((), None)


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["rbd", "iscsi"])
def test_no_secret_is_in_any_log_or_exception(
    driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running_cinder(CinderModel(driver=driver)) as served, talking(served) as client:
        row = client.attachment_create(served.model.add_volume().id, new_uuid())
        shown = client.attachment_update(row.id, connector())
        client.attachments(row.volume_id, row.server_id or "")
        secret = served.model.secrets[0]
        assert secret in str(shown.connection_info)
        text = f"backend said auth_password={secret} and keyring: '{secret}'"
        served.faults.replace(
            [{"call": "attachment_show", "do": "fail", "status": 400, "message": text}]
        )
        error = refusal(lambda: client.attachment(row.id))
    told = caplog.text + repr(shown) + "".join(traceback.format_exception(error))
    assert secret not in told
    assert "backend said" in told
    assert "***" in told
