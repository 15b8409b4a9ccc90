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

from aggregates.host import host_uuid
from ledger.http.openapi import document
from ledger.http.routes import ROUTES
from ledger.log.application import Ledger
from ledger.native import accepting
from tests.service.api_world import HOST, NEWEST, OTHER, Api, guest
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import Seen, begin_look
from tests.tiers import DEEP
from tests.tokens import token_of

EXAMPLES = 12 if DEEP else 4
#: One has no end, and is tested by itself; the other schemathesis leaves out by itself.
LEFT_OUT = frozenset({"event_stream", "openapi"})
#: Beside migrations, which began with 2.23.
OF_NEWER_VERSIONS = frozenset(
    {"tags", "tag", "tags_replace", "tags_delete", "tag_add", "tag_delete", "hypervisor"}
)

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


async def left_behind(api: Api) -> str:
    """One of the remnants of a detach that was given up."""
    *_, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    answer = await api.ask("POST", path, json={"give_up": {"reason": "scrap"}})
    return str((await answer.json())["remnants"][0]["remnant_id"])


# The service is in this process, and its threads draw random pauses meanwhile.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
async def test_what_the_document_allows_is_answered_as_it_says(
    api: Api, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    for wait_s in ("CLAIM_WAIT_S", "DELETE_WAIT_S"):  # what is in the way here never ends
        monkeypatch.setattr(accepting, wait_s, 0.0)
    with Ledger(database_url) as ledger:
        seen, look = Seen(ledger), begin_look(ledger)
        seen.look()
    remnant_id = await left_behind(api)
    server, volume = await api.attached()
    [row] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    await api.ask("PUT", f"/v2.1/servers/{server}/tags/a", version=NEWEST)
    migrating = await under_migration(api, server)
    begun = await api.get(f"/v1/operations/{row['operation_id']}")
    refused = await api.ask("DELETE", f"/v2.1/servers/{volume}")
    known = {
        "server_id": server,
        "volume_id": volume,
        "attachment_id": row["attachment_id"],
        "operation_id": row["operation_id"],
        "remnant_id": remnant_id,
        "host": HOST,
        "service_id": str(host_uuid(HOST)),
        "hypervisor_id": str(host_uuid(HOST)),
        "key": "attachment-ledger:shown_by_host",
        "tag": "a",
        "alias": "os-services",
        "name": "attach",
        "flavor_id": "c2.m2048",
        "request_id": begun["request_id"],
        "finding_id": str(seen.id),
        "look_id": str(look.id),
        "snapshot_id": str(look.id),
        "refused_id": refused.headers["X-Openstack-Request-Id"],
    }
    url = str(api.http.make_url("/")).rstrip("/")
    await asyncio.to_thread(exercise, url, known, migrating)


async def under_migration(api: Api, server: str) -> dict[str, str]:
    """Another server, and its live migration that never ends."""
    moving = guest()
    await api.register(guest(server_id=server), moving)
    await api.register(host=OTHER)
    server_id = moving["server_id"]
    await api.act(server_id, "os-migrateLive", {"host": OTHER, "block_migration": False})
    [row] = (await api.get("/v2.1/os-migrations"))["migrations"]
    return {"server_id": server_id, "migration_id": str(row["id"])}


def exercise(url: str, known: dict[str, str], migrating: dict[str, str]) -> None:
    """Send what the document allows, to things that are there and to others, by turns."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    tried: set[str] = set()
    rules = {route.name: route.rules for route in ROUTES}
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    # What reads things comes first, and what ends them last.
    order = {"GET": 0, "DELETE": 2}
    found.sort(key=lambda operation: order.get(operation.method.upper(), 1))
    for operation in found:
        name = operation.definition.raw["operationId"]
        if name in LEFT_OUT:
            continue
        who = "agent-1" if rules[name] == ("attachment-ledger:hosts:agent",) else "admin"
        now = requests.get(
            f"{url}/v1/hosts/{HOST}", headers={"X-Auth-Token": token_of("admin")}, timeout=10
        ).json()  # fencing it was one of the examples
        there = migrating if "server_migration" in name else {}
        newest = bool(there) or name in OF_NEWER_VERSIONS
        given = {**known, **there, "epoch": now["epoch"]}
        statuses = send_examples(operation, who, given, newest=newest)
        if operation.method.upper() == "GET":
            assert statuses & {200, 204}, f"{name} only ever answered {statuses}"
        tried.add(name)
    assert tried == {route.name for route in ROUTES} - LEFT_OUT


def send_examples(operation: Any, who: str, known: dict[str, Any], *, newest: bool) -> set[int]:
    """The statuses of the answers; `newest`: in older versions it is not there, or by other ids."""
    turns = itertools.count()
    statuses: set[int] = set()

    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @hypothesis.given(case=operation.as_strategy())
    def send(case: Any) -> None:
        turn = next(turns)
        if turn % 4 == 1:  # as plainly as it can be asked, so that it is answered
            case.query = {name: known[name] for name in case.query or {} if name in known}
        if turn % 2:
            given = case.path_parameters or {}
            case.path_parameters = {**given, **{k: known[k] for k in given}}
            if newest:
                case.headers = {**(case.headers or {}), "OpenStack-API-Version": "compute 2.105"}
            if "epoch" in (case.query or {}):
                case.query["epoch"] = known["epoch"]
        if "wait_s" in (case.query or {}):
            case.query["wait_s"] = 0
        answer = case.call_and_validate(
            headers={**(case.headers or {}), "X-Auth-Token": token_of(who)}, checks=CHECKS
        )
        statuses.add(answer.status_code)

    send()
    return statuses
