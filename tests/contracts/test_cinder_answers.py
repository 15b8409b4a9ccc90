"""Who answered: a refusal, or a success, is believed only if Cinder says it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from host_agent.shared.cinder.client import CinderClient, attachment_view
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from tests.contracts.cinder_worlds import FakeTime, refusal
from tests.doubles.served import Handler, served

ONCE = RetryLimits(attempts_max=1)
PAGE = "<html><body><h1>Not here</h1></body></html>"
VERSIONS = json.dumps({"versions": [{"id": "v3.0", "version": "3.71"}]})


@contextmanager
def answering(status: int, body: str, kind: str = "application/json") -> Iterator[str]:
    """Something that stands where Cinder should be, and answers all calls so."""

    class Stranger(Handler):
        def respond(self) -> None:
            self.body()
            if self.path in {"/", "/v3/"}:
                self.answer(200, VERSIONS.encode(), Content_Type="application/json")
            else:
                self.answer(status, body.encode(), Content_Type=kind)

    with served(Stranger) as url:
        yield f"{url}/v3"


def fault(name: str, code: int, message: str) -> str:
    return json.dumps({name: {"code": code, "message": message}})


def said(endpoint: str, call: Callable[[CinderClient], object]) -> PortError:
    client = CinderClient(CinderSettings(endpoint=endpoint), retry=FakeTime().retry(ONCE))
    try:
        return refusal(lambda: call(client))
    finally:
        client.close()


ID, OTHER_ID = "6d09374b-25cf-4486-8b0e-7f52166bf0b4", "fdeb3649-93c4-407d-891d-d5cab68859e5"
CALLS: dict[str, Callable[[CinderClient], object]] = {
    "volume": lambda c: c.volume(ID),
    "attachment": lambda c: c.attachment(ID),
    "attachments": lambda c: c.attachments(ID, ID),
    "create": lambda c: c.attachment_create(ID, ID),
    "update": lambda c: c.attachment_update(ID, {"host": "h"}),
    "complete": lambda c: c.attachment_complete(ID),
    "delete": lambda c: c.attachment_delete(ID),
    "make": lambda c: c.volume_create({"size_gb": 1}, ID),
    "unmake": lambda c: c.volume_delete(ID),
    "migrated": lambda c: c.migrate_volume_completion(ID, ID, error=False),
}


STATUSES = (200, 202, 302, 400, 403, 404, 405, 409, 413, 500, 503)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("status", STATUSES)
def test_a_page_of_whoever_stands_between_says_nothing(
    status: int, call: Callable[[CinderClient], object]
) -> None:
    with answering(status, PAGE, "text/html") as endpoint:
        assert said(endpoint, call).kind is ErrorKind.UNKNOWN


@pytest.mark.parametrize("call", ["volume", "attachments", "create", "update", "make", "migrated"])
def test_silence_is_no_answer_to_a_question(call: str) -> None:
    with answering(204, "") as endpoint:
        assert said(endpoint, CALLS[call]).kind is ErrorKind.UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        fault("error", 404, f"Volume {ID} could not be found."),  # Keystone's form
        fault("itemNotFound", 400, f"Volume {ID} could not be found."),
        json.dumps({"message": f"no Route matched {ID}"}),  # an API gateway's
        json.dumps({"itemNotFound": f"Volume {ID} could not be found."}),
        json.dumps([1]),
        "",
        fault("itemNotFound", 404, "The resource could not be found."),  # a wrong path
        fault("itemNotFound", 404, f"Volume {OTHER_ID} could not be found."),
    ],
)
def test_what_is_gone_is_said_by_cinder_and_named(body: str) -> None:
    with answering(404, body) as endpoint:
        error = said(endpoint, CALLS["attachment"])
        assert (error.kind, error.code) == (ErrorKind.UNKNOWN, "not_cinders")
        assert said(endpoint, CALLS["delete"]).code == "not_cinders", "nor is it deleted"


def test_cinders_own_words_are_believed() -> None:
    for name, status, code in (
        ("itemNotFound", 404, "not_found"),
        ("badRequest", 400, "refused"),
        ("conflictingRequest", 409, "refused"),
        ("overLimit", 413, "refused"),
        ("forbidden", 403, "forbidden"),
    ):
        with answering(status, fault(name, status, f"{ID} it is.")) as endpoint:
            error = said(endpoint, CALLS["attachment"])
        assert (error.kind, error.code, error.message) == (ErrorKind.FINAL, code, f"{ID} it is.")


@pytest.mark.parametrize("status", [401, 429])
def test_who_asks_for_a_login_or_for_patience_has_passed_nothing_on(status: int) -> None:
    with answering(status, PAGE, "text/html") as endpoint:
        assert said(endpoint, CALLS["create"]).kind is ErrorKind.RETRYABLE


def test_the_old_calls_believe_nobody_else_either() -> None:
    with answering(404, PAGE, "text/html") as endpoint:
        client = CinderClient(CinderSettings(endpoint=endpoint), retry=FakeTime().retry(ONCE))
        calls: list[Callable[[], object]] = [
            lambda: client.reserve(ID),
            lambda: client.detach(ID, ID),
            lambda: client.old_attachments(ID),
        ]
        assert {refusal(call).code for call in calls} == {"not_cinders"}
        client.close()


@pytest.mark.parametrize(
    ("info", "connected"),
    [
        ({}, False),
        (None, False),
        ({"format": "raw"}, False),  # of the volume, which a bare reservation has, too
        ({"format": "raw", "driver_volume_type": "nfs"}, True),
    ],
)
def test_a_format_alone_is_no_connection(info: dict[str, str] | None, connected: bool) -> None:
    data = {"id": ID, "volume_id": ID, "instance": None, "status": "reserved"}
    assert bool(attachment_view({**data, "connection_info": info}).connection_info) is connected
