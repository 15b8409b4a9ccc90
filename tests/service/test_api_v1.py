"""Our own API: operations and acts, histories, attachments, hosts, the feed, health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from handlers.flows import FLOWS
from projections.reads.queries import Queries
from tests.service.api_world import DEADLINE_S, HOST, PROJECT, Api, guest


async def parked_detach(api: Api) -> tuple[str, str, Any]:
    """A detach whose host could not let the volume go."""
    server, volume = await api.attached()
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    [command] = await api.commands()
    await api.report(command, "unplug")
    error = {"kind": "final", "code": "busy", "message": "device is busy"}
    await api.report(command, "disconnect", error=error)
    return server, volume, await api.finished(answer)


# ------------------------------------------------------------------------ operations


async def test_an_operation_tells_its_plan_and_how_far_it_is(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume)
    operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"])
    assert operation["server_id"] == server
    assert operation["volume_ids"] == [volume]
    assert (operation["actor"], operation["project_id"]) == ("admin", PROJECT)
    assert operation["request_id"] == answer.headers["X-Openstack-Request-Id"]
    status = {step["step"]: step["status"] for step in operation["steps"]}
    assert status == {
        "reserve": "done",
        "bind": "done",
        "update": "running",
        "ready": "pending",
        "connect": "pending",
        "plug": "pending",
        "complete": "pending",
    }
    assert {step["place"] for step in operation["steps"]} == {"ledger", HOST}
    assert operation["acts"] == ["unwind"]


async def test_waiting_returns_when_the_operation_ends(api: Api) -> None:
    answer = await api.attach(await api.server(), api.volume())
    path = answer.headers["X-Attachment-Ledger-Operation"]
    waiting = asyncio.create_task(api.get(path + "?wait_s=30"))
    await api.do_next_command()
    assert (await asyncio.wait_for(waiting, 10))["outcome"] == "completed"


async def test_a_wait_ends_by_itself(api: Api) -> None:
    answer = await api.attach(await api.server(), api.volume())
    path = answer.headers["X-Attachment-Ledger-Operation"]
    assert (await api.get(path + "?wait_s=0.2"))["state"] == "running"


async def test_a_parked_operation_says_what_is_left_and_why(api: Api) -> None:
    _, volume, operation = await parked_detach(api)
    assert operation["why"] == "device is busy"
    assert [(left["step"], left["volume_id"]) for left in operation["left"]] == [
        ("disconnect", volume),
        ("delete", volume),
    ]
    assert operation["acts"] == ["retry", "skip", "give_up"]
    listed = await api.get("/v1/operations?state=parked")
    assert [row["why"] for row in listed["operations"]] == ["device is busy"]


async def test_retry_tries_again_and_the_reason_is_in_the_log(api: Api) -> None:
    server, _, operation = await parked_detach(api)
    path = f"/v1/operations/{operation['operation_id']}"
    body = {"retry": {"reason": "multipathd was restarted"}}
    answer = await api.ask("POST", path + "/actions", "operator", json=body)
    assert answer.status == 200
    assert (await answer.json())["state"] == "running"
    command = await api.do_next_command()
    assert [step["name"] for step in command["steps"]] == ["disconnect", "delete"]
    assert (await api.get(path + "?wait_s=10"))["outcome"] == "completed"
    assert (await api.get(f"/v2.1/servers/{server}"))["server"]["status"] == "ACTIVE"
    history = (await api.get(path + "/history"))["events"]
    [act] = [event for event in history if event["topic"] == "Operation.RetryRequested"]
    assert act["body"]["reason"] == "multipathd was restarted"
    assert act["body"]["sender"]["address"] == "127.0.0.1"
    assert (act["actor"], act["cause"]) == ("operator", "operator")


async def test_skip_vouches_for_one_step(api: Api) -> None:
    *_, operation = await parked_detach(api)
    path = f"/v1/operations/{operation['operation_id']}"
    wrong = await api.ask(
        "POST", path + "/actions", json={"skip": {"step": "delete", "reason": "gone"}}
    )
    assert wrong.status == 409
    assert (await wrong.json())["code"] == "operator_act"
    answer = await api.ask(
        "POST", path + "/actions", json={"skip": {"step": "disconnect", "reason": "gone"}}
    )
    assert answer.status == 200
    command = await api.do_next_command()
    assert [step["name"] for step in command["steps"]] == ["delete"]
    assert (await api.get(path + "?wait_s=10"))["outcome"] == "completed"


async def test_unwind_and_give_up(api: Api) -> None:
    *_, parked = await parked_detach(api)
    path = f"/v1/operations/{parked['operation_id']}/actions"
    refused = await api.ask("POST", path, json={"unwind": {"reason": "please"}})
    assert refused.status == 409
    assert "pivot" in (await refused.json())["detail"]
    answer = await api.ask("POST", path, json={"give_up": {"reason": "the host burnt down"}})
    assert (await answer.json())["outcome"] == "cancelled"


async def test_operations_are_filtered_and_paged_newest_first(api: Api) -> None:
    server, volume = await api.attached()
    await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    page = await api.get(f"/v1/operations?volume={volume}&limit=1")
    assert [row["flow"] for row in page["operations"]] == ["detach"]
    page = await api.get(f"/v1/operations?volume={volume}&limit=1&after={page['next']}")
    assert [row["flow"] for row in page["operations"]] == ["attach"]
    for query in ("flow=attach", f"server={server}&state=finished", f"host={HOST}&flow=attach"):
        [row] = (await api.get(f"/v1/operations?{query}"))["operations"]
        assert row["flow"] == "attach"
    assert (await api.get(f"/v1/operations?server={uuid4()}"))["operations"] == []
    refused = await api.ask("GET", "/v1/operations?flow=atach")
    assert refused.status == 400
    told = await refused.json()
    assert (told["code"], "flow list" in told["hint"]) == ("invalid", True)


# --------------------------------------------------------------------------- history


async def test_the_history_of_a_server_outlives_it(api: Api) -> None:
    server, _ = await api.attached()
    await api.played(await api.ask("DELETE", f"/v2.1/servers/{server}", "member"))
    events = (await api.get(f"/v1/servers/{server}/history"))["events"]
    assert "Instance.Deleted" in [event["topic"] for event in events]


async def test_the_history_of_each_thing_tells_the_story_in_order(api: Api) -> None:
    server, volume = await api.attached()
    [row] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    for path in (
        f"/v1/volumes/{volume}/history",
        f"/v1/servers/{server}/history",
        f"/v1/attachments/{row['attachment_id']}/history",
        f"/v1/hosts/{HOST}/history",
        f"/v1/operations/{row['operation_id']}/history",
    ):
        events = (await api.get(path))["events"]
        positions = [event["position"] for event in events]
        assert positions == sorted(positions)
        assert events
        connected = [event for event in events if event["topic"] == "Attachment.Connected"]
        assert [event["volume_id"] for event in connected] == [volume]
        newest = (await api.get(path + "?order=desc"))["events"]
        assert [event["position"] for event in newest] == positions[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_history_is_read_in_pages_either_way(api: Api, order: str) -> None:
    _, volume = await api.attached()
    path = f"/v1/volumes/{volume}/history?order={order}"
    whole = [event["position"] for event in (await api.get(path))["events"]]
    seen: list[int] = []
    page = await api.get(path + "&limit=3")
    seen += [event["position"] for event in page["events"]]
    while page["next"] is not None:
        page = await api.get(f"{path}&limit=3&after={page['next']}")
        seen += [event["position"] for event in page["events"]]
    assert seen == whole
    part = await api.get(f"{path}&after={whole[1]}&before={whole[4]}")
    assert [event["position"] for event in part["events"]] == whole[2:4]


async def test_as_of_reads_end_at_the_moment(api: Api) -> None:
    server, volume = await api.attached()
    moment = datetime.now(UTC).isoformat()  # not quoted: clients forget to
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    answer = await api.ask("DELETE", path)
    await api.do_next_command()
    await api.finished(answer)

    then = (await api.get(f"/v1/volumes/{volume}/history?at={moment}"))["events"]
    now = (await api.get(f"/v1/volumes/{volume}/history"))["events"]
    assert then == now[: len(then)]
    topics = [event["topic"] for event in now[len(then) :]]
    assert "BlockDeviceMapping.MappingEnded" in topics
    assert "BlockDeviceMapping.MappingCreated" not in topics
    [was] = (await api.get(f"/v1/attachments?volume={volume}&at={moment}"))["attachments"]
    assert (was["host"], was["server_id"]) == (HOST, server)
    path = f"/v1/attachments?volume={volume}&at={moment}&server="
    assert len((await api.get(path + server))["attachments"]) == 1
    assert (await api.get(path + str(uuid4())))["attachments"] == []
    is_now = datetime.now(UTC).isoformat()
    assert (await api.get(f"/v1/attachments?host={HOST}&at={is_now}"))["attachments"] == []


async def test_nothing_is_known_of_an_unknown_volume(api: Api) -> None:
    answer = await api.ask("GET", f"/v1/volumes/{uuid4()}/history")
    assert answer.status == 404
    assert answer.content_type == "application/problem+json"
    problem = await answer.json()
    assert problem["code"] == "volume_not_found"
    assert problem["request_id"] == answer.headers["X-Openstack-Request-Id"]


# ----------------------------------------------------------------- attachments, hosts


async def test_attachments_are_kept_after_their_end(api: Api) -> None:
    server, volume = await api.attached()
    [row] = (await api.get(f"/v1/attachments?server={server}"))["attachments"]
    assert (row["state"], row["host"], row["volume_id"]) == ("attached", HOST, volume)
    answer = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    await api.do_next_command()
    operation = await api.finished(answer)
    assert (await api.get(f"/v1/attachments?server={server}"))["attachments"] == []
    [row] = (await api.get(f"/v1/attachments?server={server}&open=false"))["attachments"]
    assert (row["state"], row["operation_id"]) == ("deleted", operation["operation_id"])
    assert (await api.get(f"/v1/attachments/{row['attachment_id']}"))["ended_at"]


async def test_a_host_shows_its_contact_and_what_is_open_there(api: Api) -> None:
    await api.attached()
    shown = await api.get(f"/v1/hosts/{HOST}")
    assert (shown["alive"], shown["fenced"], shown["epoch"]) == (True, False, 0)
    assert shown["open_attachments"] == 1
    assert [row["host"] for row in (await api.get("/v1/hosts"))["hosts"]] == [HOST]


async def test_fencing_ends_what_the_host_owes_and_is_forced_on_one_that_answers(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    attach = await api.attach(server, volume)
    [command] = await api.commands()
    body: dict[str, Any] = {"reason": "host is dead", "evidence": "power is off"}
    answers = await api.ask("POST", f"/v1/hosts/{HOST}/fence", "operator", json=body)
    refusal = await answers.json()
    assert (answers.status, refusal["code"]) == (409, "host_answers")
    assert "force" in refusal["hint"]
    assert (await api.get(f"/v1/hosts/{HOST}"))["epoch"] == 0
    body["force"] = True
    answer = await api.ask("POST", f"/v1/hosts/{HOST}/fence", "operator", json=body)
    shown = await answer.json()
    assert (shown["fenced"], shown["epoch"]) == (True, 1)
    assert (shown["fence_reason"], shown["fence_evidence"]) == ("host is dead", "power is off")
    # The fence is the evidence by which the ledger undoes what the host may have done.
    operation = await api.finished(attach)
    assert (operation["state"], operation["outcome"]) == ("finished", "failed")
    assert operation["error"]["code"] == "host_fenced"
    late = await api.report(command, "update")
    assert (late.status, (await late.json())["code"]) == (409, "stale_epoch")
    assert await api.commands(epoch=1, wait_s=0) == []
    refused = await api.attach(server, api.volume())
    assert refused.status == 409

    answer = await api.ask(
        "POST", f"/v1/hosts/{HOST}/unfence", "operator", json={"reason": "repaired"}
    )
    assert (await answer.json())["fenced"] is False


# ------------------------------------------------------------------------------ feed


async def messages(response: Any) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """The events of a stream, with their ids."""
    number = 0
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("id: "):
            number = int(line[4:])
        if line.startswith("data: "):
            yield number, json.loads(line[6:])


async def test_the_feed_is_the_whole_log_by_page(api: Api) -> None:
    await api.attached()
    head = await api.head()
    seen: list[int] = []
    after = 0
    while True:
        page = await api.get(f"/v1/events?after={after}&limit=7")
        seen += [event["position"] for event in page["events"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == list(range(1, head + 1))


async def test_a_checkpoint_is_the_end_of_the_log(api: Api) -> None:
    empty = await api.get("/v1/events/checkpoint", "operator")
    assert (empty["log"], empty["position"], empty["chain"]) == (None, 0, "00" * 32)
    await api.attached()
    kept = await api.get("/v1/events/checkpoint", "operator")
    assert kept["position"] == await api.head()
    assert len(bytes.fromhex(kept["chain"])) == 32
    await api.server()
    later = await api.get("/v1/events/checkpoint", "operator")
    assert later["log"] == kept["log"]
    assert later["chain"] != kept["chain"]


async def test_what_is_detached_is_refused_rather_than_passed_over(
    api: Api, database_url: str
) -> None:
    server, volume = await api.attached()
    head = await api.head()
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM events WHERE position = 3")
        db.execute(
            "INSERT INTO detached_months (month, first_position, last_position, file, sha256)"
            " VALUES ('2026-05-01', 1, 4, 'events-2026-05.jsonl.gz', '')"
        )
    for path in ("/v1/events", "/v1/events?after=2", "/v1/events/stream?after=2"):
        refused = await api.ask("GET", path)
        told = await refused.json()
        assert (refused.status, told["code"]) == (410, "detached"), path
        assert "events-2026-05.jsonl.gz" in told["detail"]
        assert "after position 4" in told["hint"]
    page = await api.get("/v1/events?after=3")
    assert [event["position"] for event in page["events"]] == list(range(4, head + 1))
    for path in (f"/v1/volumes/{volume}", f"/v1/servers/{server}", f"/v1/hosts/{HOST}"):
        assert (await api.get(f"{path}/history"))["detached_to"] == 4


async def test_the_stream_tells_what_happens_and_can_be_resumed(api: Api) -> None:
    server = await api.server()
    head = await api.head()
    stream = await api.ask("GET", f"/v1/events/stream?after={head - 1}")
    assert stream.content_type == "text/event-stream"
    following = messages(stream)
    number, first = await asyncio.wait_for(anext(following), DEADLINE_S)
    assert number == first["position"] == head
    assert (await api.attach(server, api.volume())).status == 200
    number, event = await asyncio.wait_for(anext(following), DEADLINE_S)
    assert number == head + 1
    assert event["topic"]
    stream.close()

    resumed = await api.ask("GET", "/v1/events/stream", headers={"Last-Event-ID": str(number)})
    again, _ = await asyncio.wait_for(anext(messages(resumed)), DEADLINE_S)
    assert again == number + 1
    resumed.close()


async def test_a_stream_ends_cleanly_when_the_database_is_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer has begun: an error as a second answer would be garbage in the middle of it."""
    stream = await api.ask("GET", "/v1/events/stream")
    assert (await stream.content.readline()).startswith(b": from position")

    async def away(*_: Any, **_more: Any) -> Any:
        raise psycopg.OperationalError("the database restarts")

    monkeypatch.setattr(Queries, "events", away)
    await api.register(guest())
    assert (await asyncio.wait_for(stream.content.read(), 10)).strip() == b""


async def test_streams_are_bounded(api: Api) -> None:
    most = api.components.settings.limits.streams_max
    streams = [await api.ask("GET", "/v1/events/stream") for _ in range(most)]
    refused = await api.ask("GET", "/v1/events/stream")
    assert (refused.status, (await refused.json())["code"]) == (503, "too_many_streams")
    # An attach has to wait a moment too; it does not need a place among them.
    assert (await api.attach(await api.server(), api.volume())).status == 200
    for stream in streams:
        stream.close()


# -------------------------------------------------------------------- flows and health


async def test_flows_are_shown_as_tables(api: Api) -> None:
    names = [flow["name"] for flow in (await api.get("/v1/flows"))["flows"]]
    assert names == list(FLOWS)
    detach = await api.get("/v1/flows/detach")
    assert (detach["pivot"], detach["exclusive"], detach["patient"]) == ("unplug", False, False)
    assert detach["summary"].startswith("Detach a volume")
    assert (detach["stages"][0]["once"], detach["stages"][0]["side"]) == (False, "current")
    assert detach["stages"][0]["steps"][0] == {
        "name": "unplug",
        "do": "disk_unplug",
        "undo": "disk_plug",
    }


async def test_health_readiness_and_metrics_need_no_token(api: Api) -> None:
    assert (await api.get("/healthz", None))["status"] == "ok"
    ready = await api.get("/readyz", None)
    assert ready["checks"] == {"database": None, "projections": None}
    await api.attached()
    page = await (await api.ask("GET", "/metrics", None)).text()
    assert f"ledger_events_total {float(await api.head())}" in page
    assert 'ledger_projection_lag_events{projection="operations"} 0.0' in page
    assert 'ledger_projection_lag_seconds{projection="operations"} 0.0' in page
    assert 'ledger_hosts{state="alive"} 1.0' in page
    assert 'ledger_operations_open{state="parked"} 0.0' in page
    assert 'route="volume_attachment_create"' in page


async def test_a_failing_check_makes_it_not_ready_and_is_named(api: Api) -> None:
    async def dispatcher() -> str | None:
        return "it has stopped"

    api.components.checks["dispatcher"] = dispatcher  # type: ignore[index]
    answer = await api.ask("GET", "/readyz", None)
    assert answer.status == 503
    assert (await answer.json())["checks"]["dispatcher"] == "it has stopped"
