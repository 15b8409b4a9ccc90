"""`drift repair`: shows by default, does it with `--apply`."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from ledger.native import accepting
from ledger.native.drift.schemas_repairs import ForgetWanted, Forgotten, RepairProposed
from tests.service.cli_stub import OPERATION, Run, Stub, finished, parked

FINDING = "66666666-6666-4666-8666-666666666666"
PATH = f"/v1/drift/{FINDING}/repair"
PLAN = {
    "finding_id": FINDING,
    "drift_class": "reservation_unknown",
    "meaning": "Cinder reserves the volume.",
    "flow": "drop_reservation",
    "steps": [
        {"step": "again", "verb": "drift_again", "place": "ledger", "does": "look again"},
        {"step": "drop", "verb": "attachment_drop", "place": "ledger", "does": "delete it"},
    ],
    "asks_again": ["ledger", "cinder"],
    "hosts": [],
    "differs": {"cinder": {"status": "reserved"}, "ledger": None},
    "never": "Nothing else.",
}


async def begun(_request: web.Request) -> web.Response:
    answer = {"finding_id": FINDING, "operation_id": OPERATION}
    return web.json_response(answer, status=202, headers=accepting.headers(OPERATION))


def test_without_apply_the_plan_is_shown_and_nothing_is_done(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"POST {PATH}"] = RepairProposed.model_validate(PLAN)
    assert run("drift", "repair", FINDING, "--reason", "seen") == 0
    told = capsys.readouterr()
    assert "Nothing was changed. To do it: add --apply" in told.err
    for words in ("on ledger: drop  delete it", "cinder: status reserved", "Nothing else."):
        assert words in told.out
    assert [asked.body for asked in stub.asked] == [{"reason": "seen", "apply": False}]


def test_machines_get_the_plan_as_it_is(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"POST {PATH}"] = RepairProposed.model_validate(PLAN)
    assert run("drift", "repair", FINDING, "--reason", "seen", "-f", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"] == PLAN["steps"]
    assert shown["evidence"] == PLAN["differs"]


def test_with_apply_it_is_an_operation_that_can_be_waited_for(run: Run, stub: Stub) -> None:
    stub.answers[f"POST {PATH}"] = begun
    stub.answers[f"GET /v1/operations/{OPERATION}"] = finished()
    more = ["--apply", "--repair", "forget_attachment", "--wait"]
    assert run("drift", "repair", FINDING, "--reason", "seen", *more) == 0
    body = {"reason": "seen", "apply": True, "repair": "forget_attachment"}
    assert stub.asked[0].body == body


# --- servers whose guests have vanished ---------------------------------------------------------

SERVER = "77777777-7777-4777-8777-777777777777"
IDS = {"server_id": SERVER, "finding_id": FINDING}


def test_servers_of_a_host_are_shown_page_by_page_and_none_is_forgotten(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [([{**IDS, "plan": PLAN}], 7), ([{**IDS, "refused": "Its guest is there."}], None)]
    stub.answers["POST /v1/forget"] = [
        Forgotten.model_validate({"servers": servers, "next": after}) for servers, after in pages
    ]
    assert run("server", "forget", "--host", "hv1", "--reason", "burnt", "-f", "json") == 4
    told = capsys.readouterr()
    assert "Nothing was changed. To do it: add --apply" in told.err
    [planned, refused] = json.loads(told.out)
    assert planned["What would be done"] == PLAN["steps"]
    assert planned["Evidence"] == PLAN["differs"]
    assert refused["Why not"] == "Its guest is there."
    bodies = [asked.body for asked in stub.asked]
    for body in bodies:
        assert ForgetWanted.model_validate(body, strict=True).apply is False
    assert [body.get("after") for body in bodies] == [None, 7]


def test_a_server_that_is_forgotten_can_be_waited_for(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"servers": [{**IDS, "operation_id": OPERATION}], "next": None}
    stub.answers["POST /v1/forget"] = Forgotten.model_validate(one)
    stub.answers[f"GET /v1/operations/{OPERATION}"] = [finished(), parked()]
    asked = ["server", "forget", SERVER, "--reason", "burnt", "--apply", "--wait"]
    assert run(*asked, "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["Operation"] == OPERATION
    body = {"server": SERVER, "reason": "burnt", "apply": True, "limit": 100}
    assert stub.asked[0].body == body
    assert run(*asked) == 6
