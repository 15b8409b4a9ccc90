"""Commands that ask the service: forms of output, exit codes, texts of errors, waiting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from ledger.cli.log.archived import AsOf
from ledger.cli.operations import waiting
from ledger.config import PAGE_ITEMS_MAX
from ledger.http.schemas import Leftovers
from ledger.native import acts, schemas, schemas_attachments
from ledger.native.log import schemas_events
from tests.service.cli_stub import (
    ATTACHMENT,
    OPERATION,
    SERVER,
    VOLUME,
    Run,
    Stub,
    acted,
    event,
    finished,
    operation,
    parked,
    problem,
    refusing,
)

PATH = f"/v1/operations/{OPERATION}"
#: What each route is sent.
ROUTE: dict[str, Any] = {route.name: route.body for route in acts.ROUTES}
HISTORY = f"GET /v1/volumes/{VOLUME}/history"


def page(*events: schemas_events.EventShown, following: int | None = None) -> schemas_events.Events:
    return schemas_events.Events(events=list(events), next=following)


def host(**changes: Any) -> schemas.HostShown:
    shown = {
        "host": "hv1",
        "service_version": 1,
        "capabilities": {"tag": True},
        "epoch": 0,
        "fenced": False,
        "registered_at": "2026-11-20T10:00:00Z",
        "seen_at": "2026-11-20T10:00:00Z",
        "alive": True,
    }
    return schemas.HostShown.model_validate({**shown, **changes})


# --- who asks --------------------------------------------------------------------------


def test_a_token_is_sent_and_never_shown(
    run: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEDGER_TOKEN", "t0p-s3cret")
    stub.answers["GET /v1/hosts"] = refusing(403, "forbidden", "Policy doesn't allow hosts.")
    assert run("host", "list") == 4
    assert stub.asked[0].headers["x-auth-token"] == "t0p-s3cret"
    assert "t0p-s3cret" not in "".join(capsys.readouterr())


def test_without_a_token_the_account_is_named_for_the_history(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/hosts"] = schemas.Hosts(hosts=[])
    assert run("host", "list") == 0
    assert stub.asked[0].headers["x-user-id"]


# --- errors become exit codes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 4), (403, 4), (404, 3), (409, 4), (429, 4), (500, 1)]
)
def test_refusals_have_their_exit_codes(
    status: int, code: int, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/hosts"] = refusing(status, "some_code", "This is why.", "Do that.")
    assert run("host", "list") == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "error: This is why.\n  Do that.\n"


def test_what_is_not_there_is_not_found(run: Run) -> None:
    assert run("operation", "show", OPERATION) == 3


def test_an_answer_that_is_no_json_is_no_traceback(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def page_of_a_proxy(_request: web.Request) -> web.Response:
        return web.Response(text="<html>It works!</html>")

    stub.answers["GET /v1/hosts"] = page_of_a_proxy
    assert run("host", "list") == 1
    assert "does not answer in JSON: is this the ledger?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["http://[", "ledger:8790", "http://", "ftp://ledger", "http://a:99999", "http://a,b"]
)
def test_a_url_that_is_none_is_told(url: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", url, "host", "list") == 2
    said = capsys.readouterr().err
    assert "is no URL of a ledger" in said
    assert "https://ledger:8790" in said


def test_an_unexpected_error_says_how_to_see_more(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def other_form(_request: web.Request) -> web.Response:
        return web.json_response({"unexpected": []})

    stub.answers["GET /v1/hosts"] = other_form
    assert run("host", "list") == 1
    assert "--debug" in capsys.readouterr().err
    assert run("--debug", "host", "list") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_unknown_column_is_a_usage_error(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/hosts"] = schemas.Hosts(hosts=[host()])
    assert run("host", "list", "-c", "Colour") == 2


# --- lists ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("json", '[\n  {\n    "Host": "hv1",\n    "State": "down"\n  }\n]\n'),
        ("value", "hv1 down\n"),
        ("csv", '"Host","State"\n"hv1","down"\n'),
        ("yaml", "- Host: hv1\n  State: down\n"),
        ("table", "| hv1  | down  |"),
    ],
)
def test_every_format(
    form: str, shown: str, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/hosts"] = schemas.Hosts(hosts=[host(alive=False)])
    assert run("host", "list", "-f", form, "-c", "Host", "-c", "State") == 0
    printed = capsys.readouterr().out
    assert shown in printed if form == "table" else shown == printed


def test_operation_list_hands_on_its_filters(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/operations"] = schemas.Operations(operations=[], next=None)
    filters = ["--flow", "attach", "--server", SERVER, "--volume", VOLUME, "--host", "hv1"]
    assert run("operation", "list", "--parked", *filters, "--limit", "5") == 0
    assert stub.asked[0].query == {
        "state": "parked",
        "flow": "attach",
        "server": SERVER,
        "volume": VOLUME,
        "host": "hv1",
        "limit": "5",
    }


def test_pages_are_followed_up_to_the_limit(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [event(n, "Volume.Held", {}) for n in range(1, 6)]
    stub.answers["GET /v1/events"] = [page(*events[:3], following=3), page(*events[3:])]
    assert run("event", "list", "--limit", "4", "-f", "value", "-c", "Position") == 0
    assert capsys.readouterr().out == "1\n2\n3\n4\n"
    assert [asked.query for asked in stub.asked] == [
        {"limit": "4"},
        {"limit": "1", "after": "3"},
    ]


def test_attachments_at_a_moment(run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    span = {
        "attachment_id": ATTACHMENT,
        "volume_id": VOLUME,
        "server_id": SERVER,
        "host": "hv1",
        "flow": "old",
        "from_position": 3,
        "to_position": None,
        "from_at": "2026-11-20T10:00:00Z",
        "to_at": None,
    }
    at = "2026-11-20T13:02:00Z"
    stub.answers["GET /v1/attachments"] = schemas_attachments.AttachmentsAt.model_validate(
        {"at": at, "attachments": [span]}
    )
    arguments = ["--flow", "old", "--at", "2026-11-20T14:02+01:00"]
    assert run("attachment", "list", *arguments, "-f", "value", "-c", "Host", "-c", "Flow") == 0
    assert capsys.readouterr().out == "hv1 old\n"
    assert stub.asked[0].query["at"] == at
    assert "known_at" not in stub.asked[0].query
    assert stub.asked[0].query["limit"] == "101"
    capsys.readouterr()
    assert run("attachment", "list", *arguments, "--limit", "1") == 0
    assert "Only" not in capsys.readouterr().err
    stub.answers["GET /v1/attachments"] = schemas_attachments.AttachmentsAt.model_validate(
        {"at": at, "attachments": [span, span]}
    )
    assert run("attachment", "list", *arguments, "--limit", "1", "-f", "value", "-c", "Host") == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err.strip()) == (
        "hv1\n",
        "Only the first 1 attachments are shown.",
    )
    assert run("attachment", "list", *arguments, "--limit", "5000") == 0
    assert stub.asked[-1].query["limit"] == str(PAGE_ITEMS_MAX)
    assert "Only" not in capsys.readouterr().err


def test_attachments_at_a_moment_as_they_were_known_later(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    at, known = "2026-11-20T13:02:00Z", "2026-11-20T13:10:00Z"
    span = {
        "attachment_id": ATTACHMENT,
        "volume_id": VOLUME,
        "server_id": SERVER,
        "host": "hv1",
        "flow": "new",
        "from_position": 3,
        "to_position": None,
        "to_at": None,
        "from_at": "2026-11-20T13:05:00Z",
        "certain": False,
    }
    stub.answers["GET /v1/attachments"] = schemas_attachments.AttachmentsAt.model_validate(
        {"at": at, "known_at": known, "attachments": [span]}
    )
    listed = ("attachment", "list", "--host", "hv1")
    assert run(*listed, "--at", at, "--known-at", known, "-f", "value", "-c", "State") == 0
    assert capsys.readouterr().out == "perhaps on host\n"
    assert (stub.asked[0].query["at"], stub.asked[0].query["known_at"]) == (at, known)
    assert run(*listed, "--known-at", known) == 2
    assert "--known-at needs --at" in capsys.readouterr().err


def test_a_history_as_it_was_known_later(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    at, known = "2026-11-20T10:00:00Z", "2026-11-20T10:09:00Z"
    seen = {"origin": "nova", "after": None, "before": "2026-11-20T10:01:00Z"}
    stub.answers[f"GET /v1/volumes/{VOLUME}/history"] = page(
        event(1, "Attachment.Completed", {"seen": seen}, recorded_at="2026-11-20T10:02:00Z")
    )
    told = ("history", "volume", VOLUME)
    assert run(*told, "--at", at, "--known-at", known) == 0
    assert "Perhaps: Seen at Nova" in capsys.readouterr().out
    assert (stub.asked[0].query["at"], stub.asked[0].query["known_at"]) == (at, known)
    assert run(*told, "--known-at", known) == 2
    assert "--known-at needs --at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recorded", "after", "told"),
    [(0, None, True), (5, None, True), (5, 1, False), (5, 0, True), (9, 0, False)],
)
def test_an_archived_event_is_told_of_as_the_service_does(
    recorded: int, after: int | None, told: bool
) -> None:
    def moment(minute: int) -> str:
        return f"2026-11-20T10:0{minute}:00+00:00"

    seen = {"after": None if after is None else moment(after), "before": moment(recorded)}
    archived = {"recorded_at": moment(recorded), "body": {"seen": seen}}
    assert AsOf(moment(0), moment(8)).tells(archived) == told
    done = {**archived, "body": {}}
    assert AsOf(moment(0), moment(8)).tells(done) == (recorded == 0)
    assert AsOf(moment(0)).tells(archived) == (recorded == 0)
    assert AsOf().tells(archived)


def test_an_attachment_as_it_was(run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    history = f"GET /v1/attachments/{ATTACHMENT}/history"
    created = {"volume_id": VOLUME, "server_id": SERVER, "adopted": False}
    stub.answers[history] = page(
        event(1, "Attachment.AttachmentCreated", created),
        event(2, "BlockDeviceMapping.MappingEnded", {}),
        event(3, "Attachment.ConnectorUpdated", {"host": "hv1", "driver": "iscsi"}, version=2),
        event(4, "Attachment.Connected", {}, version=3, recorded_at="2026-11-20T10:01:01Z"),
    )
    arguments = [ATTACHMENT, "--at", "2026-11-20T10:01"]
    assert run("attachment", "show", *arguments, "-f", "json") == 0
    then = json.loads(capsys.readouterr().out)
    assert [then[name] for name in ("state", "host", "flow")] == ["connecting", "hv1", "new"]
    to_come = refusing(400, "moment_to_come", "'at' is in the future, by the database's clock.")
    stub.answers[history] = [stub.answers[history], to_come]
    assert run("attachment", "show", ATTACHMENT, "--at", "2999-01-01") == 2
    assert "is in the future" in capsys.readouterr().err
    stub.answers[history] = page()
    assert run("attachment", "show", *arguments) == 3
    assert f"there was no attachment {ATTACHMENT} at" in capsys.readouterr().err


def test_a_moment_of_no_volume_or_host_is_a_usage_error(run: Run, stub: Stub) -> None:
    assert run("attachment", "list", "--at", "2026-11-20") == 2
    assert run("attachment", "list", "--flow", "new", "--at", "2026-11-20") == 2
    assert stub.asked == []


@pytest.mark.parametrize("moment", ["yesterday", "2026-13-01", "", "9999-12-31T23:59-05:00"])
def test_a_time_that_is_none_is_a_usage_error(moment: str, run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        run("history", "volume", VOLUME, "--at", moment)
    assert ended.value.code == 2


# --- history ---------------------------------------------------------------------------------


def test_history_is_the_newest_events_oldest_first(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = [
        event(9, "Attachment.Deleted", {}),
        event(8, "Attachment.Disconnected", {"shared": False}),
    ]
    stub.answers[HISTORY] = page(*newest, following=8)
    assert run("history", "volume", VOLUME, "--limit", "2") == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["volume", "Cinder"]
    assert "Only the last 2 events are shown" in said.err
    assert stub.asked[0].query == {"order": "desc", "limit": "2"}
    assert run("history", "volume", VOLUME, "--limit", "2", "--reverse", "-f", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["Position"] for row in rows] == [9, 8]
    assert rows[0]["Operation"] == OPERATION
    assert rows[0]["Who"] == "alice"


def test_history_as_of_a_moment_in_utc(run: Run, stub: Stub) -> None:
    stub.answers[HISTORY] = page()
    assert run("history", "volume", VOLUME, "--at", "2026-11-17T14:02") == 0
    assert stub.asked[0].query["at"] == "2026-11-17T14:02:00Z"


# --- operations --------------------------------------------------------------------------------


def test_show_draws_the_plan_and_offers_what_can_be_done(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = parked()
    assert run("operation", "show", OPERATION) == 0
    shown = capsys.readouterr().out
    assert "-> disconnect          failed, 3 attempts, The device is busy. (busy)" in shown
    assert f"attachment-ledger operation retry {OPERATION} --reason" in shown
    assert run("operation", "show", OPERATION, "-f", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in shown["left"]] == ["disconnect", "delete"]
    assert shown["next"] == ["retry", "skip", "give_up"]
    assert shown["steps"][1]["attempts"] == 3


@pytest.mark.parametrize(
    ("ended", "code"),
    [(finished(), 0), (finished("failed"), 5), (finished("cancelled"), 5), (parked(), 6)],
    ids=["completed", "failed", "cancelled", "parked"],
)
def test_wait_says_how_it_ended(
    ended: schemas.OperationShown, code: int, run: Run, stub: Stub
) -> None:
    stub.answers[f"GET {PATH}"] = [operation(), ended]
    assert run("operation", "wait", OPERATION) == code


def test_wait_gives_up_when_time_is_up(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = operation()
    assert run("operation", "wait", OPERATION, "--timeout", "0.3", "-f", "json") == 7
    said = capsys.readouterr()
    assert json.loads(said.out)["state"] == "running"
    assert f"attachment-ledger operation wait {OPERATION}" in said.err


def test_wait_outlives_a_restart_of_the_service(
    run: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "OUTAGE_PAUSE_S", 0.01)

    async def broken(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def away(_request: web.Request) -> web.Response:
        return problem(503, "database_unavailable", "The database does not answer.")

    async def back(_request: web.Request) -> web.Response:
        return web.json_response(finished().model_dump(mode="json"))

    stub.answers[f"GET {PATH}"] = [broken, away, back]
    assert run("operation", "wait", OPERATION) == 0
    assert "Trying again" in capsys.readouterr().err


def test_wait_does_not_wait_for_what_does_not_exist(run: Run, stub: Stub) -> None:
    assert run("operation", "wait", OPERATION) == 3
    assert [asked.path for asked in stub.asked].count(PATH) == 1


def test_progress_is_kept_out_of_the_result(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = [operation(), operation(), finished()]
    assert run("operation", "wait", OPERATION, "-f", "json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcome"] == "completed"
    assert said.err.splitlines() == [  # once: nothing had changed
        "  unplug on hv1: done, 12 ms",
        "detach: running, step disconnect",
    ]


@pytest.mark.parametrize(
    ("typed", "body"),
    [
        (["retry", OPERATION], {"retry": {"reason": "why"}}),
        (
            ["skip", OPERATION, "disconnect", "--lane", "1"],
            {"skip": {"reason": "why", "lane": 1, "step": "disconnect"}},
        ),
        (["unwind", OPERATION], {"unwind": {"reason": "why"}}),
        (["give-up", OPERATION], {"give_up": {"reason": "why"}}),
    ],
    ids=["retry", "skip", "unwind", "give-up"],
)
def test_acts_say_what_and_why(
    typed: list[str], body: dict[str, Any], run: Run, stub: Stub
) -> None:
    ROUTE["operation_act"].model_validate(body, strict=True)
    stub.answers[f"POST {PATH}/actions"] = acted()
    stub.answers[f"GET {PATH}"] = operation()
    assert run("operation", *typed, "--reason", "why") == 0
    assert stub.asked[0].body == body


def test_an_act_waits_if_told_to(run: Run, stub: Stub) -> None:
    stub.answers[f"POST {PATH}/actions"] = acted()
    stub.answers[f"GET {PATH}"] = [operation(), parked()]
    assert run("operation", "retry", OPERATION, "--reason", "why", "--wait") == 6


def test_a_refused_act_says_why(run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    why = f"Operation {OPERATION} cannot be unwound: its pivot is passed."
    stub.answers[f"POST {PATH}/actions"] = refusing(409, "operator_act", why)
    assert run("operation", "unwind", OPERATION, "--reason", "why") == 4
    assert why in capsys.readouterr().err


def test_fencing_sends_reason_and_evidence(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /v1/hosts/hv1/fence"] = host(fenced=True)
    stub.answers["GET /v1/hosts/hv1"] = host(fenced=True, epoch=1)
    arguments = ["--reason", "no answer", "--evidence", "powered off by IPMI"]
    assert run("host", "fence", "hv1", *arguments, "-f", "value", "-c", "state") == 0
    ROUTE["host_fence"].model_validate(stub.asked[0].body, strict=True)
    assert stub.asked[0].body["force"] is False
    assert capsys.readouterr().out == "fenced\n"
    assert run("host", "fence", "hv1", *arguments, "--force") == 0
    ROUTE["host_fence"].model_validate(stub.asked[1].body, strict=True)
    assert stub.asked[1].body["force"] is True


def test_a_host_that_may_hold_what_is_not_its_any_more_is_suspect_and_tells_what(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Leftovers.model_validate({"guests": [SERVER], "attachments": [ATTACHMENT]})
    stub.answers["GET /v1/hosts/hv1"] = host(suspect=True, leftovers=left)
    assert run("host", "show", "hv1") == 0
    shown = capsys.readouterr().out
    assert "| state            | suspect" in shown
    assert f"guest {SERVER}" in shown
    assert f"attachment {ATTACHMENT}" in shown
    assert run("host", "show", "hv1", "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)["leftovers"]["guests"] == [SERVER]


# --- the live feed -------------------------------------------------------------------------------


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ledger.cli.log import event as events

    monkeypatch.setattr(events, "RECONNECT_S", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_tail_resumes_where_a_broken_stream_ended(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    starts: list[str | None] = []

    async def feed(request: web.Request) -> web.StreamResponse:
        starts.append(request.query.get("after"))
        if len(starts) == 2:
            return web.Response(status=503, text="<html>a proxy without a server</html>")
        if len(starts) > 3:
            return problem(403, "forbidden", "That is all.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        data = event(6 + len(starts), "Volume.Held", {"server_id": SERVER})
        await response.write(b": hello\n\nid: 7\nevent: Volume.Held\n")
        await response.write(b"data: %s\n\n" % data.model_dump_json().encode())
        return response

    stub.answers["GET /v1/events"] = page(event(6, "Volume.Held", {"server_id": SERVER}))
    stub.answers["GET /v1/events/stream"] = feed
    assert run("event", "tail", "-f", "json") == 4
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["position"] for each in told] == [7, 9]
    assert starts == ["6", "7", "7", "9"]


@pytest.mark.usefixtures("_at_once")
def test_tail_resumes_a_stream_that_broke_before_its_first_event(run: Run, stub: Stub) -> None:
    """From where it began: what was written meanwhile is not passed over."""
    stub.answers["GET /v1/events"] = page(event(6, "Volume.Held", {"server_id": SERVER}))
    stub.answers["GET /v1/events/stream"] = [
        refusing(503, "away", "Not now."),
        refusing(403, "forbidden", "That is all."),
    ]
    assert run("event", "tail") == 4
    [newest, *streams] = stub.asked
    assert newest.query == {"order": "desc", "limit": "1"}
    assert [each.query for each in streams] == [{"after": "6"}, {"after": "6"}]


def test_tail_of_a_ledger_that_is_away_ends_at_once(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/events"] = refusing(503, "away", "Not now.")
    assert run("event", "tail") == 1
    assert len(stub.asked) == 1
