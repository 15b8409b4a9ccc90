"""Which of two worlds answers: what is ours never reaches Nova, and what is Nova's always does."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from aggregates.host import host_uuid
from aggregates.instance import Instance
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import DiskShown, GuestShown, UnlabelledShown
from ledger.auth.policy import Target
from ledger.auth.tokens import Identity
from ledger.http.route import also_at
from ledger.http.routes import ROUTES
from projections.catalog import ALL
from projections.running.runner import catch_up
from tests.doubles.recording_nova import Asked, RecordingNova, not_found, said
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import HOST, PROJECT, eventually, guest
from tests.service.passing_world import Both, both_worlds
from tests.surveys import survey

SERVERS = "/v2.1/servers"
EVENTS = "/v2.1/os-server-external-events"
SNAPSHOTS = "/v2.1/os-assisted-volume-snapshots"

#: Whose handlers ask Nova and answer for both.
OF_BOTH = {"versions", "version", "servers", "servers_detail"}
#: What of a route without a server has to be ours for it to be ours; all else is Nova's.
NAMED: dict[str, dict[str, Any]] = {
    "server_create": {"json": {"server": {"availability_zone": f"nova:{HOST}"}}},
    "external_events": {},
    "assisted_snapshot": {},
    "assisted_deletion": {},
    "flavor": {"flavor_id": "c2.m2048"},
    "flavor_specs": {"flavor_id": "c2.m2048"},
    "hypervisor": {"hypervisor_id": str(host_uuid(HOST))},
    "service_update": {"service_id": str(host_uuid(HOST))},
    "service_delete": {"service_id": str(host_uuid(HOST))},
}


def filled(path: str, **given: str) -> str:
    names = ("flavor_id", "hypervisor_id", "service_id", "snapshot_id", "alias", "migration_id")
    others = dict.fromkeys((*names, "request_id", "key", "tag"), "1")
    values = {"project_id": PROJECT, "volume_id": str(uuid4()), **others, **given}
    return path.format(**values)


async def test_each_route_of_a_server_is_answered_by_whose_it_is(both: Both) -> None:
    ours, theirs, unknown = await both.api.server(), await both.watched(), str(uuid4())
    routes = [route for route in ROUTES if "{server_id}" in route.path and route.nova]
    assert len(routes) > 25
    for route in routes:
        for path in (route.path, *also_at(route)):
            for server, asked in ((ours, 0), (theirs, 1), (unknown, 1), (theirs.upper(), 1)):
                address = filled(path, server_id=server)
                answer = await both.ask(route.method, address, json={})
                said_by = await answer.read()
                may_ask = route.name == "volume_attachment" and not path.startswith("/v2/")
                expected = 1 if may_ask else asked  # what we do not show, Nova may
                assert both.said_by_nova() == expected, (route.method, address)
                assert (said_by == b'{"by": "nova"}') == bool(expected), (route.name, said_by)


async def test_what_of_a_server_no_route_of_ours_has_is_its_owners(both: Both) -> None:
    ours, theirs = await both.api.server(), await both.watched()
    for rest in ("os-interface", "remote-consoles", "no/such", "diagnostics"):
        assert (await both.ask("GET", f"{SERVERS}/{ours}/{rest}")).status == 404
        assert both.said_by_nova() == 0
        assert (await both.ask("GET", f"{SERVERS}/{theirs}/{rest}")).status == 200
        assert both.said_by_nova() == 1
    assert (await both.ask("PATCH", f"{SERVERS}/{ours}")).status == 405


async def test_each_other_route_is_novas_unless_it_names_what_is_ours(both: Both) -> None:
    await both.api.server()
    routes = [
        route
        for route in ROUTES
        if route.nova and "{server_id}" not in route.path and route.name not in OF_BOTH
    ]
    assert set(NAMED) <= {route.name for route in routes}
    for route in routes:
        for path in (route.path, *also_at(route)):
            await both.ask(route.method, filled(path), json={})
            assert both.said_by_nova() == 1, (route.method, path)
    for name, given in NAMED.items():
        options = {key: given[key] for key in given if key == "json"}
        names = {key: str(given[key]) for key in given if key != "json"}
        for route in (each for each in routes if given and each.name == name):
            await both.ask(route.method, filled(route.path, **names), **options)
            assert both.said_by_nova() == 0, (route.method, route.path)


async def test_odd_bodies_are_for_nova_to_refuse(both: Both) -> None:
    odd = (b"", b"[]", b"{", b'"x"', b'{"server": 1, "events": 2, "snapshot": []}')
    for path in (SERVERS, EVENTS, SNAPSHOTS, "/v2.1/os-volumes_boot"):
        for sent in (
            *odd,
            b'{"server": {"host": {}, "availability_zone": "a:\\u0000"}, "events": [1, {}]}',
        ):
            assert (await both.ask("POST", path, data=sent)).status == 200
            [asked] = both.nova.asked
            assert asked.body == sent
            both.nova.asked.clear()
    await both.ask("DELETE", f"{SNAPSHOTS}/{uuid4()}?delete_info=[")
    assert both.said_by_nova() == 1


async def test_a_new_server_is_novas_unless_a_host_of_ours_is_named(both: Both) -> None:
    await both.api.register()
    for names, asked in (
        ({}, 1),
        ({"availability_zone": "nova"}, 1),
        ({"availability_zone": "nova:hv1"}, 1),
        ({"availability_zone": f"nova:{HOST}"}, 0),
        ({"availability_zone": f":{HOST}:{HOST}"}, 0),
        ({"host": HOST}, 0),
        ({"hypervisor_hostname": HOST}, 0),
        ({"host": "hv1"}, 1),
    ):
        await both.ask("POST", SERVERS, json={"server": {"name": "x", **names}})
        assert both.said_by_nova() == asked, names


async def test_a_zone_of_many_names_costs_no_more_questions_than_one(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has proven yet who asks."""
    queries, asked = both.api.components.queries, list[str]()
    real = queries.host

    async def host(name: str) -> Any:
        asked.append(name)
        return await real(name)

    monkeypatch.setattr(queries, "host", host)
    zone = ":".join(["nova", *map(str, range(1000))])
    await both.ask("POST", SERVERS, json={"server": {"availability_zone": zone}})
    assert (both.said_by_nova(), len(asked)) == (1, 2)


async def test_a_snapshot_is_made_by_who_has_the_volume(both: Both) -> None:
    _, volume = await both.api.attached()
    for of, asked in ((volume, 0), (str(uuid4()), 1)):
        await both.ask("POST", SNAPSHOTS, json={"snapshot": {"volume_id": of}})
        assert both.said_by_nova() == asked
        info = {"delete_info": json.dumps({"volume_id": of})}
        await both.ask("DELETE", f"{SNAPSHOTS}/{uuid4()}", params=info)
        assert both.said_by_nova() == asked


async def test_a_server_that_is_not_shown_yet_is_ours_all_the_same(both: Both) -> None:
    """The tables are behind the log: who is asked then has to wait, and not to ask Nova."""
    both.api.components.runner.stop()
    server = str(uuid4())
    with pytest.raises(AssertionError, match="projections are late"):
        await both.api.server(server_id=server)
    path = f"{SERVERS}/{server}/os-volume_attachments/{uuid4()}"
    answer = await both.ask("GET", path)
    assert (answer.status, both.said_by_nova()) == (503, 0)
    assert "projections are late" in await answer.text()


async def test_who_has_a_server_since_just_now_is_known_by_the_log(
    both: Both, database_url: str
) -> None:
    """Nova would do what is asked on a host of ours: with it both wait for the tables."""
    mine, theirs = await both.watched(), await both.adopted()
    both.api.components.runner.stop()
    both.record(mine, Instance.Adopted, came_from="nova", reason="rack 3", epoch=0)
    both.record(theirs, Instance.HandedBack, to="nova", reason="not yet")
    for server in (mine, theirs):
        answer = await both.ask("DELETE", f"{SERVERS}/{server}/os-volume_attachments/{uuid4()}")
        assert (answer.status, both.said_by_nova()) == (503, 0)
    rows = await both.api.components.queries.ours([mine, theirs])
    assert [(str(row["server_id"]), row["ours"]) for row in rows] == [(mine, True), (theirs, False)]
    catch_up(database_url, ALL)
    for server, asks in ((mine, 0), (theirs, 1)):
        assert (await both.ask("GET", f"{SERVERS}/{server}")).status == 200
        assert both.said_by_nova() == asks


# ----------------------------------------------------------------------- Cinder's question


async def asked(both: Both, server: str, volume: str) -> tuple[int, str]:
    """As Cinder asks before it deletes an attachment: 404 is a yes."""
    path = f"{SERVERS}/{server}/os-volume_attachments/{volume}"
    answer = await both.ask("GET", path, version="2.89")
    return answer.status, await answer.text()


async def in_contact(both: Both) -> None:
    async def seen() -> bool:
        return (await both.api.get(f"/v1/hosts/{HOST}"))["alive"] is True

    await eventually(seen, "contact written")


MAPPED = said(200, {"volumeAttachment": {"attachment_id": str(uuid4())}})


async def test_of_a_server_of_novas_its_own_answer_is_given(both: Both) -> None:
    for server in (await both.watched(), str(uuid4())):
        both.nova.answers["/"] = MAPPED
        status, text = await asked(both, server, str(uuid4()))
        assert (status, text.encode()) == (200, MAPPED.partition(b"\r\n\r\n")[2])
        both.nova.answers["/"] = not_found("Volume")
        assert (await asked(both, server, str(uuid4())))[0] == 404
        both.nova.answers["/"] = said(403)
        assert (await asked(both, server, str(uuid4())))[0] == 403


async def test_novas_no_is_not_believed_where_a_host_of_ours_shows_the_volume(both: Both) -> None:
    both.nova.answers["/"] = not_found("Volume")
    server, volume = await both.watched(), str(uuid4())
    shown = guest(PROJECT, server_id=server, devices=["vda", "vdb"], volumes=[volume])
    await both.api.register(shown)
    status, text = await asked(both, server, volume)
    assert (status, "1 of the hosts that this service hears of show" in text) == (409, True)
    assert (await asked(both, server, str(uuid4())))[0] == 404

    await both.api.register({**shown, "devices": ["vda"], "volumes": []})
    assert (await asked(both, server, volume))[0] == 404
    await both.api.register(shown)
    assert (await asked(both, server, volume))[0] == 409
    await both.api.register()
    assert (await asked(both, server, volume))[0] == 404


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
async def test_novas_no_is_not_believed_where_a_host_of_novas_has_just_shown_the_volume(
    both: Both, labelled: bool
) -> None:
    both.nova.answers["/"] = not_found("Volume")
    server, volume = await both.watched(), str(uuid4())
    disk = DiskShown(serial=volume, live="vdb", persistent="vdb")
    other = UnlabelledShown(target="vdb", source="/mnt/x", volume_id=volume)
    disks, others = ((disk,), ()) if labelled else ((), (other,))
    seen = GuestShown(
        server_id=server, power_state=PowerState.RUNNING, disks=disks, unlabelled=others
    )
    queries, shown = both.api.components.queries, survey(guests=(seen,))
    document = msgspec.json.encode(shown).decode()
    sent = {"digest": shown.digest(), "boot_id": "b", "document": document}
    assert await queries.send_survey("hv1", **sent, age_s=lambda: 151.0)
    assert (await asked(both, server, volume))[0] == 404, "it may have been detached since"
    for age_s in (119.0, 61.0, 1.0):  # its timer's period is a minute, and any delay in it
        assert await queries.send_survey("hv1", **sent, age_s=partial(float, age_s))
        status, text = await asked(both, server, volume)
        assert (status, "1 of the hosts that this service hears of show" in text) == (409, True)
    assert (await asked(both, server, str(uuid4())))[0] == 404
    assert (await asked(both, await both.watched(), volume))[0] == 404
    path = f"{SERVERS}/{server}/os-volume_attachments/{volume}"
    for version, headers, status in (
        ("2.1", {}, 404),
        (None, {}, 404),
        (None, {"X-OpenStack-Nova-API-Version": "2.89"}, 409),
        (None, {"X-Service-Token": both.token}, 409),
    ):
        answer = await both.ask("GET", path, version=version, headers=headers)
        assert answer.status == status, "a user may wait for the end of a detach"


async def test_of_a_server_of_ours_nova_may_still_know_more(both: Both) -> None:
    server, volume = await both.api.attached()
    await in_contact(both)
    assert (await asked(both, server, volume))[0] == 200
    assert both.said_by_nova() == 0, "what is known here is not asked there"

    both.nova.answers["/"] = MAPPED
    assert (await asked(both, server, str(uuid4())))[0] == 200
    both.nova.answers["/"] = not_found("Volume")
    assert (await asked(both, server, str(uuid4())))[0] == 404
    both.nova.answers["/"] = said(401)
    status, text = await asked(both, server, str(uuid4()))
    assert (status, "Nova answers 401" in text) == (409, True)


async def test_an_older_version_cannot_be_cinder_and_asks_nobody_else(both: Both) -> None:
    server = await both.api.server()
    path = f"{SERVERS}/{server}/os-volume_attachments/{uuid4()}"
    assert (await both.ask("GET", path, version="2.88")).status == 404
    assert both.said_by_nova() == 0


async def test_while_nova_is_away_no_attachment_may_be_deleted(
    database_url: str, keystone: SimulatedKeystone, nova: RecordingNova
) -> None:
    nova.url = "http://127.0.0.1:9"  # discard: nobody listens
    async with both_worlds(database_url, keystone, nova) as both:
        ours = await both.api.server()
        await in_contact(both)
        for server in (ours, await both.watched(), str(uuid4())):
            assert (await asked(both, server, str(uuid4())))[0] == 503


# ---------------------------------------------------------------------------------- lists


def page(*ids: str, more: bool = False) -> bytes:
    listed: dict[str, Any] = {"servers": [{"id": each, "links": []} for each in ids]}
    if more:
        listed["servers_links"] = [{"rel": "next", "href": f"http://x/?marker={ids[-1]}"}]
    return said(200, listed)


async def listed(both: Both, query: str = "", detail: str = "") -> tuple[list[str], str | None]:
    """The ids of a page, and the query of the next one."""
    answer = await both.ask("GET", f"{SERVERS}{detail}{query}")
    assert answer.status == 200, await answer.text()
    told = await answer.json()
    [link] = told.get("servers_links", [{"href": None}])
    rest = link["href"] and "?" + link["href"].partition("?")[2]
    return [each["id"] for each in told["servers"]], rest


@pytest.mark.parametrize("detail", ["", "/detail"])
async def test_a_list_has_novas_servers_and_then_ours(both: Both, detail: str) -> None:
    theirs = [await both.watched(), str(uuid4())]
    await both.api.register(*(guest(PROJECT) for _ in range(3)))
    await both.api.projected()
    both.nova.answers["/"] = page(*theirs)
    ids, more = await listed(both, "?all_tenants=1", detail)
    assert ids[:2] == theirs
    assert (len(ids), len(set(ids)), more) == (5, 5, None), (
        "what is watched is Nova's, and not there twice"
    )
    [asked_] = both.nova.asked
    assert asked_.path == f"{SERVERS}{detail}?all_tenants=1"
    ours = ids[2:]

    # Page by page, as clients go on: with a full page of Nova's, its own link.
    both.nova.answers["/"] = page(*theirs, more=True)
    ids, more = await listed(both, "?limit=2", detail)
    assert (ids, more) == (theirs, f"?marker={theirs[-1]}")
    both.nova.answers["/"] = page()
    ids, more = await listed(both, f"?limit=2&marker={theirs[-1]}", detail)
    assert (ids, more) == (ours[:2], f"?limit=2&marker={ours[1]}")
    both.said_by_nova()
    assert more is not None
    assert await listed(both, more, detail) == (ours[2:], None)
    assert both.said_by_nova() == 0, "behind a marker of ours Nova has nothing"

    # A page on which both have a place; and one that Nova fills without saying that more comes.
    both.nova.answers["/"] = page(*theirs)
    ids, more = await listed(both, "?limit=3", detail)
    assert (ids, more) == ([*theirs, ours[0]], f"?limit=3&marker={ours[0]}")
    ids, more = await listed(both, "?limit=2", detail)
    assert (ids, more) == (theirs, f"?limit=2&marker={theirs[-1]}")


async def test_what_was_handed_over_is_listed_once_and_as_the_ledger_has_it(both: Both) -> None:
    theirs, [mine, other] = str(uuid4()), [await both.adopted() for _ in range(2)]
    both.nova.answers["/"] = page(mine, theirs, other)
    ids, more = await listed(both, "?all_tenants=1", "/detail")
    assert (ids[0], sorted(ids[1:]), more) == (theirs, sorted([mine, other]), None)

    # The next page begins behind the last one that is Nova's.
    both.nova.answers["/"] = page(theirs, mine, more=True)
    assert await listed(both, "?limit=2") == ([theirs], f"?limit=2&marker={theirs}")
    # An empty one would be the last to clients.
    behind = f"{SERVERS}?limit=2&marker={other}"
    both.nova.answers = {"/": page(mine, other, more=True), behind: page(theirs, more=True)}
    both.said_by_nova()
    assert await listed(both, "?limit=2") == ([theirs], f"?marker={theirs}")
    assert [each.path for each in both.nova.asked] == [f"{SERVERS}?limit=2", behind]


async def test_requests_for_what_was_handed_over_do_not_come_to_nova(both: Both) -> None:
    await both.api.register()
    server = await both.adopted(HOST)
    await both.api.register(guest(PROJECT, server_id=server, devices=["vda"], volumes=[]))
    await in_contact(both)
    both.nova.answers["/"] = MAPPED
    for path in ("", "/os-volume_attachments", "/os-instance-actions"):
        assert (await both.ask("GET", f"{SERVERS}/{server}{path}")).status == 200
    status, _ = await asked(both, server, str(uuid4()))
    assert status == 404, "what Nova has of it still is no answer to Cinder"
    reboot = {"reboot": {"type": "SOFT"}}
    assert (await both.ask("POST", f"{SERVERS}/{server}/action", json=reboot)).status == 202
    assert both.said_by_nova() == 0


async def test_a_list_that_nova_refuses_is_not_half_given(both: Both) -> None:
    await both.api.server()
    for status in (400, 401, 500):
        both.nova.answers["/"] = said(status, {"computeFault": {}})
        answer = await both.ask("GET", SERVERS)
        assert (answer.status, await answer.json()) == (status, {"computeFault": {}})
    both.nova.answers["/"] = said(200, b"no json")
    assert (await both.ask("GET", SERVERS)).status == 502


@pytest.mark.parametrize(
    "query", ["ip=10.1", "image=some", "key_name=mine", "soft_deleted=1", "sort_key=key_name"]
)
async def test_what_only_nova_can_filter_by_finds_novas_alone(both: Both, query: str) -> None:
    """Its users' lists are not refused for want of what the ledger's servers do not have."""
    await both.api.server()
    theirs = str(uuid4())
    both.nova.answers["/"] = page(theirs)
    assert await listed(both, f"?{query}", "/detail") == ([theirs], None)


async def test_what_is_refused_of_ours_makes_no_list_shorter(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator whose policy at the ledger is another than Nova's would not know."""
    policy = both.api.components.policy
    real = policy.permits

    def permits(who: Identity, rule: str, target: Target | None = None) -> bool:
        return not rule.endswith(":get_all_tenants") and real(who, rule, target)

    monkeypatch.setattr(policy, "permits", permits)
    for query, status in {"all_tenants=1": 403, "nonsense=1": 400, "name=(": 400}.items():
        both.nova.answers["/"] = page(str(uuid4()))
        assert (await both.ask("GET", f"{SERVERS}?{query}")).status == status, query


async def test_a_list_is_read_whatever_the_client_unpacks(both: Both) -> None:
    both.nova.answers["/"] = page()
    answer = await both.ask("GET", SERVERS, headers={"Accept-Encoding": "gzip"})
    assert answer.status == 200
    [asked_] = both.nova.asked
    assert asked_.named("accept-encoding") == []


async def test_with_a_token_of_ours_the_ledgers_own_view_is_listed(both: Both) -> None:
    theirs = await both.watched()
    rows = (await both.api.get(SERVERS))["servers"]
    assert [row["id"] for row in rows] == [theirs]
    assert both.said_by_nova() == 0


async def test_the_console_shows_the_ledgers_own_view_and_shows_nova_no_session(both: Both) -> None:
    ours, theirs = await both.api.server(), await both.watched()
    await both.api.projected()
    for path in ("/ui/servers", f"/ui/servers/{ours}", f"/ui/servers/{theirs}"):
        page_ = await both.ask("GET", path, headers={"Cookie": "session=secret"})
        assert page_.status == 200, path
    assert theirs in await (await both.ask("GET", "/ui/servers")).text()
    assert both.nova.asked == []


# --------------------------------------------------------------------------------- events


def told(*servers: str) -> dict[str, Any]:
    return {
        "events": [
            {"name": "volume-extended", "server_uuid": each, "tag": str(uuid4())}
            for each in servers
        ]
    }


async def answering(asked_: Asked, writer: asyncio.StreamWriter) -> None:
    events = json.loads(asked_.body)["events"]
    done = [{**each, "status": "completed", "code": 200, "by": "nova"} for each in events]
    writer.write(said(200, {"events": done}))


async def test_events_reach_whose_servers_they_are_of(both: Both) -> None:
    both.nova.answering = answering
    ours, theirs, unknown = await both.api.server(), await both.watched(), str(uuid4())
    answer = await both.ask("POST", EVENTS, json=told(ours), version="2.93")
    assert (answer.status, both.said_by_nova()) == (200, 0)

    sent = told(theirs, unknown)
    await both.ask("POST", EVENTS, json=sent, version="2.93")
    [asked_] = both.nova.asked
    assert json.loads(asked_.body) == sent
    both.nova.asked.clear()

    sent = told(theirs, ours, unknown, ours)
    answer = await both.ask("POST", EVENTS, json=sent, version="2.93")
    assert answer.status == 200, await answer.text()
    events = (await answer.json())["events"]
    assert [each["server_uuid"] for each in events] == [theirs, ours, unknown, ours]
    assert [each.get("by") for each in events] == ["nova", None, "nova", None]
    [asked_] = both.nova.asked
    assert json.loads(asked_.body)["events"] == [sent["events"][0], sent["events"][2]]


async def test_events_that_nova_does_not_take_are_told_as_failed(both: Both) -> None:
    both.nova.answers["/"] = not_found("No instances found for any event")
    ours, theirs = await both.api.server(), await both.watched()
    answer = await both.ask("POST", EVENTS, json=told(theirs, ours), version="2.93")
    assert answer.status == 207
    events = (await answer.json())["events"]
    assert [(each["status"], each["code"]) for each in events] == [
        ("failed", 404),
        ("completed", 200),
    ]


# ------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("novas", "shown"), [("2.96", "2.96"), ("2.104", "2.104"), ("2.200", "2.105")]
)
async def test_the_newest_version_is_what_both_know(both: Both, novas: str, shown: str) -> None:
    both.nova.answers["/v2.1/"] = said(200, {"version": {"version": novas}})
    for path in ("/v2.1", "/v2.1/"):
        answer = await both.api.ask("GET", path, None)
        assert (await answer.json())["version"]["version"] == shown
    both_listed = await (await both.api.ask("GET", "/", None)).json()
    assert both_listed["versions"][1]["version"] == shown
    assert len(both.nova.asked) == 1, "it is known for a while"


async def test_versions_are_told_while_nova_is_away(
    database_url: str, keystone: SimulatedKeystone, nova: RecordingNova
) -> None:
    nova.url = "http://127.0.0.1:9"
    async with both_worlds(database_url, keystone, nova) as both:
        answer = await both.api.ask("GET", "/v2.1/", None)
        assert (await answer.json())["version"]["version"] == "2.105"


async def test_a_version_above_ours_is_refused_for_ours_and_passed_on_for_novas(
    both: Both,
) -> None:
    ours, theirs = await both.api.server(), await both.watched()
    assert (await both.ask("GET", f"{SERVERS}/{ours}", version="2.999")).status == 406
    assert (await both.ask("GET", f"{SERVERS}/{theirs}", version="2.999")).status == 200
