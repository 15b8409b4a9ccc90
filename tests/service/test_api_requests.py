"""What a request led to is found by its id, by whom it may be seen, and without reading the log."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

import sql
from ledger.cli.errors import ExitCode
from ledger.native.log.schemas_refusals import RefusalShown
from tests.service.api_world import HOST, Api
from tests.service.cli_stub import OPERATION, REQUEST, Run, Stub, operation
from tests.service.test_api_record import refused
from tests.service.test_api_v1 import parked_detach
from tests.service.test_cli_naming import things

Found = set[tuple[str, str, str | None]]


async def found(api: Api, text: str, who: str = "admin") -> Found:
    answer = await api.get(f"/v1/find?text={text}", who)
    return {(each["kind"], each["id"], each["name"]) for each in answer["found"]}


async def gone_to(api: Api, text: str, who: str = "admin") -> str | None:
    answer = await api.ask("GET", f"/ui/search?q={text}", who, allow_redirects=False)
    return answer.headers.get("Location")


def id_of(answer: Any) -> str:
    return str(answer.headers["X-Openstack-Request-Id"])


async def attached(api: Api, who: str = "member", **headers: str) -> tuple[str, str]:
    """The request and the operation of an attach."""
    answer = await api.attach(await api.server(), api.volume(), who=who, headers=headers)
    assert answer.status == 200, await answer.text()
    done = await api.played(answer)
    return id_of(answer), str(done["operation_id"])


async def test_a_request_leads_to_its_operation_for_who_may_see_that(api: Api) -> None:
    request, operation = await attached(api)
    led = {("operation", operation, "attach")}
    for text in (request, request[: len("req-") + 8]):
        assert await found(api, text) == await found(api, text, "member") == led
        assert await found(api, text, "stranger") == set()
    assert await gone_to(api, request, "member") == f"/ui/operations/{operation}"
    assert await gone_to(api, request, "stranger") is None


async def test_so_does_the_request_of_the_service_that_passed_it_on(api: Api) -> None:
    theirs = f"req-{uuid4()}"
    _, operation = await attached(api, **{"X-OpenStack-Request-ID": theirs})
    assert await found(api, theirs, "member") == {("operation", operation, "attach")}
    assert await found(api, theirs, "stranger") == set()
    assert await gone_to(api, theirs) == f"/ui/operations/{operation}"


async def test_what_an_operator_did_is_found_by_operators(api: Api) -> None:
    await api.server()
    said = {"reason": "no answer", "evidence": "off", "force": True}
    fenced = await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=said)
    assert fenced.status == 200, await fenced.text()
    assert await found(api, id_of(fenced)) == {("host", HOST, None)}
    assert await found(api, id_of(fenced), "member") == set()
    assert await gone_to(api, id_of(fenced)) == f"/ui/hosts/{HOST}"


async def test_an_act_on_an_operation_and_a_fence_that_ends_one_lead_to_it(api: Api) -> None:
    _, _, operation = await parked_detach(api)
    id_ = operation["operation_id"]
    path = f"/v1/operations/{id_}"
    act = await api.ask("POST", f"{path}/actions", json={"retry": {"reason": "array is back"}})
    assert act.status == 200, await act.text()
    assert await found(api, id_of(act)) == {("operation", id_, "detach")}
    events = (await api.get(f"{path}/history"))["events"]
    topics = {each["topic"] for each in events if each["request_id"] == id_of(act)}
    assert "Operation.RetryRequested" in topics
    said = {"reason": "no answer", "evidence": "off", "force": True}
    fenced = await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=said)
    assert await found(api, id_of(fenced)) == {
        ("host", HOST, None),
        ("operation", id_, "detach"),
    }


async def test_a_refused_request_is_found_by_who_sent_it_and_by_operators(api: Api) -> None:
    request = await refused(api)
    for who in ("member", "operator"):
        [(kind, id_, why)] = await found(api, request, who)
        assert (kind, id_, why) == ("request", request, "not_found")
        assert await gone_to(api, request, who) == f"/ui/requests/{request}"
    for who in ("reader", "stranger"):
        assert await found(api, request, who) == set()
    page = await api.ask("GET", f"/ui/requests/{request}", "member")
    assert "could not be found" in await page.text()
    assert (await api.ask("GET", f"/ui/requests/{request}", "stranger")).status == 404


async def test_what_is_too_short_or_no_request_finds_nothing(api: Api) -> None:
    request, _ = await attached(api)
    for text in (request[: len("req-") + 3], "req-", "req-zzzz", f"req-{uuid4()}", request + "0"):
        assert await found(api, text) == set(), text


def test_whatever_the_log_holds_only_indexes_are_read(database_url: str) -> None:
    asked = {"low": "req-1234", "high": "req-1234~", "project_id": None}
    text = sql.query("reads", "requested").decode()
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("SET enable_seqscan = off")
        [[plan]] = db.execute(
            f"EXPLAIN (FORMAT JSON) {text}", {**asked, "actor": "a", "user_id": None}
        ).fetchall()
    read = {node["Index Name"] for node in nodes(plan[0]["Plan"]) if "Index Name" in node}
    assert read >= {
        "events_by_request",
        "operations_by_global_request",
        "refusals_by_request",
        "refusals_by_global_request",
    }
    whole = {node["Relation Name"] for node in nodes(plan[0]["Plan"]) if "Seq" in node["Node Type"]}
    assert not whole & {"events", "operations", "refusals"}


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes(part))]


# ---------------------------------------------------------------------------- the command


REFUSED = RefusalShown.model_validate(
    {
        "request_id": REQUEST,
        "global_request_id": None,
        "refused_at": "2026-11-20T10:00:00Z",
        "method": "POST",
        "route": "operation_act",
        "status": 409,
        "code": "conflict",
        "message": "It is over.",
        "actor": "bob",
        "user_id": None,
        "project_id": None,
    }
)


def test_the_command_says_what_a_request_led_to(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    led = ("operation", OPERATION, "attach"), ("host", "hv1", None)
    stub.answers["GET /v1/find"] = things(*led)
    assert run("request", "show", REQUEST) == 0
    shown = capsys.readouterr().out
    assert f"operation {OPERATION} attach" in shown
    assert "host hv1" in shown
    assert [asked.query["text"] for asked in stub.asked] == [REQUEST]


def test_the_command_shows_a_refusal_and_names_several(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal, another = ("request", REQUEST, "conflict"), REQUEST.replace("-4555", "-4666")
    stub.answers["GET /v1/find"] = [
        things(refusal),
        things(refusal, ("request", another, "conflict")),
        things(),
    ]
    stub.answers[f"GET /v1/requests/{REQUEST}"] = REFUSED
    assert run("request", "show", "5555") == 0
    assert "It is over." in capsys.readouterr().out
    assert stub.asked[0].query["text"] == "req-5555"
    assert run("request", "show", "5555") == ExitCode.USAGE
    assert another in capsys.readouterr().err
    assert run("request", "show", "5555") == ExitCode.NOT_FOUND
    assert "nothing is known of a request" in capsys.readouterr().err


def test_a_request_is_taken_for_the_operation_it_led_to(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/find"] = things(("operation", OPERATION, "attach"))
    stub.answers[f"GET /v1/operations/{OPERATION}"] = operation()
    assert run("operation", "show", REQUEST) == 0
