"""The OpenAPI document is true: schemathesis sends what it allows and checks the answers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck
from schemathesis import checks
from schemathesis.core.result import Ok

from ledger.api.openapi import document
from ledger.api.routes import ROUTES
from tests.service.api_world import HOST, Api

EXAMPLES = 12
#: One has no end, and is tested by itself; the other schemathesis leaves out by itself.
LEFT_OUT = frozenset({"event_stream", "openapi"})

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


def test_the_document_names_every_route_once() -> None:
    paths = document(ROUTES)["paths"]
    named = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert sorted(named) == sorted({route.name for route in ROUTES})


async def test_it_is_served_to_everybody(api: Api) -> None:
    served = await api.get("/openapi.json", None)
    assert served["openapi"].startswith("3.1")
    assert "/v2.1/servers/{server_id}/os-volume_attachments" in served["paths"]


@pytest.mark.slow
async def test_what_the_document_allows_is_answered_as_it_says(api: Api) -> None:
    server, volume = await api.attached()
    [row] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    known = {
        "server_id": server,
        "volume_id": volume,
        "attachment_id": row["attachment_id"],
        "operation_id": row["operation_id"],
        "host": HOST,
        "name": "attach",
    }
    url = str(api.http.make_url("/")).rstrip("/")
    await asyncio.to_thread(exercise, url, known)


def exercise(url: str, known: dict[str, str]) -> None:
    """Send what the document allows, to things that are there and to others, by turns."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    tried: set[str] = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation: Any = result.ok()
        name = operation.definition.raw["operationId"]
        if name in LEFT_OUT:
            continue
        who = "agent-1" if name in {"host_register", "host_commands", "host_reports"} else "admin"
        now = requests.get(
            f"{url}/v1/hosts/{HOST}", headers={"X-Auth-Token": "admin-token"}, timeout=10
        ).json()  # fencing it was one of the examples
        statuses = send_examples(operation, who, {**known, "epoch": now["epoch"]})
        if operation.method.upper() == "GET":
            assert 200 in statuses, f"{name} only ever answered {statuses}"
        tried.add(name)
    assert tried == {route.name for route in ROUTES} - LEFT_OUT


def send_examples(operation: Any, who: str, known: dict[str, Any]) -> set[int]:
    """The statuses of the answers."""
    turns = itertools.count()
    statuses: set[int] = set()

    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @hypothesis.given(case=operation.as_strategy())
    def send(case: Any) -> None:
        if next(turns) % 2:
            given = case.path_parameters or {}
            case.path_parameters = {**given, **{k: known[k] for k in given}}
            if "epoch" in (case.query or {}):
                case.query["epoch"] = known["epoch"]
        if "wait_s" in (case.query or {}):
            case.query["wait_s"] = 0
        answer = case.call_and_validate(
            headers={**(case.headers or {}), "X-Auth-Token": f"{who}-token"}, checks=CHECKS
        )
        statuses.add(answer.status_code)

    send()
    return statuses
