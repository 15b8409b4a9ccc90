"""What one compromised host, or a copy of one, can make of its token: nothing beyond itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from host_agent.shared.contract.definition import NOVA_NS
from host_agent.shared.contract.messages import AGENT_HEADER
from ledger.agents.speakers import Speakers
from ledger.http.problem import ApiError
from ledger.words.sentences import SENTENCES
from tests.service.api_world import DEFINITION, HOST, OTHER, Api, guest

ONE, TWO = "1" * 32, "2" * 32
INITIATOR = "iqn.1993-08.org.debian:01:abc"
NQN = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
MARK = "attachment-ledger:shown_by_host"


async def said(
    api: Api, agent: str | None, method: str, path: str, body: Any = None, host: str = HOST
) -> tuple[int, dict[str, Any]]:
    """The answer to an agent's call."""
    headers = {AGENT_HEADER: agent} if agent else {}
    answer = await api.ask(
        method, f"/v1/hosts/{host}{path}", f"agent-{host[-1]}", headers=headers, json=body
    )
    return answer.status, await answer.json()


async def registered(
    api: Api, agent: str | None = None, host: str = HOST, **more: Any
) -> tuple[int, dict[str, Any]]:
    body = {"service_version": 2, "capabilities": {}, "guests": [], **more}
    return await said(api, agent, "PUT", "", body, host)


async def silence(database_url: str) -> None:
    """All agents were heard of last an hour ago."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("UPDATE host_contact SET seen_at = seen_at - interval '1 hour'")


DEEP = f"<instance xmlns='{NOVA_NS}'>{'<a>' * 2000}{'</a>' * 2000}</instance>"
POLL = "/commands?after=0&epoch=0&wait_s=0"
CHANGES = {"epoch": 0, "guests": [], "gone": []}
PROGRESS = {"operation_id": HOST, "run": 1, "done_bytes": 1, "total_bytes": 1}
CALLS: dict[str, tuple[str, str, Any]] = {
    "register": ("PUT", "", {"service_version": 2, "capabilities": {}, "guests": []}),
    "commands": ("GET", POLL, None),
    "guests": ("POST", "/guests", CHANGES),
    "users": ("GET", f"/volumes/{'1' * 32}/users?attachment_id={'1' * 32}", None),
    "progress": ("POST", "/progress", PROGRESS),
    "reports": ("POST", "/reports", {}),
}


async def test_the_second_agent_of_one_host_name_is_refused_in_words(api: Api) -> None:
    assert (await registered(api, ONE))[0] == 200
    before = await api.components.queries.seen_at(HOST)
    for call, sent in CALLS.items():
        status, answer = await said(api, TWO, *sent)
        assert (status, answer["code"]) == (409, "host_taken"), call
        assert "Another agent speaks for host compute-1" in answer["detail"]
        assert await api.components.queries.seen_at(HOST) == before, "no contact of that host's"
    assert (await said(api, ONE, "GET", POLL))[0] == 200, "the first goes on"


async def test_an_agent_that_is_started_again_is_the_same_one(api: Api) -> None:
    assert (await registered(api, ONE))[0] == 200
    assert (await registered(api, ONE))[0] == 200


async def test_an_agent_takes_over_after_silence_and_the_former_is_refused_then(
    api: Api, database_url: str
) -> None:
    await registered(api, ONE)
    await silence(database_url)
    assert (await registered(api, TWO))[0] == 200
    for path in (POLL, POLL):
        assert (await said(api, ONE, "GET", path))[1]["code"] == "host_taken"
    assert (await said(api, TWO, "GET", POLL))[0] == 200


async def test_an_agent_takes_over_at_once_from_one_whose_host_was_fenced(api: Api) -> None:
    """The fence says who vouches that the former is over, why, and how they know."""
    await registered(api, ONE)
    assert (await registered(api, TWO))[1]["code"] == "host_taken"
    vouched = {"reason": "machine replaced", "evidence": "the old one is in the skip"}
    fence = f"/v1/hosts/{HOST}/fence"
    refused = await api.ask("POST", fence, json=vouched)
    assert (await refused.json())["code"] == "host_answers"
    assert (await registered(api, TWO))[1]["code"] == "host_taken"
    assert (await api.ask("POST", fence, json={**vouched, "force": True})).status == 200
    assert (await registered(api, TWO))[0] == 200
    assert (await registered(api, ONE))[1]["code"] == "host_taken"


async def test_an_agent_that_a_fence_was_wrong_about_speaks_on(api: Api) -> None:
    await registered(api, ONE)
    vouched = {"reason": "r", "evidence": "e", "force": True}
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=vouched)).status == 200
    assert (await registered(api, ONE))[0] == 200
    assert (await registered(api, TWO))[1]["code"] == "host_taken"


async def test_older_agents_do_not_say_which_they_are_and_are_followed_by_newer_ones(
    api: Api,
) -> None:
    assert (await registered(api))[0] == 200
    assert (await registered(api))[0] == 200
    assert (await registered(api, ONE))[0] == 200, "its host's agent was upgraded"
    assert (await registered(api))[1]["code"] == "host_taken"


async def test_a_process_that_let_the_former_in_hears_of_the_next_at_its_poll(
    api: Api, database_url: str
) -> None:
    await registered(api, ONE)
    await silence(database_url)
    beside = Speakers(api.components.queries, 60.0)  # another process
    await beside.let_in(HOST, TWO)
    assert (await said(api, ONE, "GET", POLL))[1]["code"] == "host_taken"


async def test_who_was_let_in_is_asked_for_again_after_half_of_the_silence(
    api: Api, database_url: str
) -> None:
    now = 0.0
    speakers = Speakers(api.components.queries, 60.0, lambda: now)
    await speakers.let_in(HOST, ONE)
    await silence(database_url)
    await Speakers(api.components.queries, 60.0).let_in(HOST, TWO)
    await speakers.let_in(HOST, ONE)  # it was here just now, so that nobody else can be
    now = 30.0
    with pytest.raises(ApiError, match="Another agent"):
        await speakers.let_in(HOST, ONE)


@pytest.mark.parametrize("agent", ["", "x" * 32, "1" * 33])
async def test_an_agent_that_is_none_is_refused(api: Api, agent: str) -> None:
    headers = {AGENT_HEADER: agent}
    answer = await api.ask("GET", f"/v1/hosts/{HOST}{POLL}", "agent-1", headers=headers)
    assert answer.status == 400


# ------------------------------------------------------------------------------ connectors


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("initiator", INITIATOR, "iSCSI initiator name"), ("nqn", NQN, "NVMe host NQN")],
)
async def test_two_hosts_that_storage_cannot_tell_apart_are_refused(
    api: Api, key: str, value: str, words: str
) -> None:
    connector = {"host": HOST, "ip": "192.0.2.1", key: value}
    assert (await registered(api, connector=connector))[0] == 200
    shown = await api.get(f"/v1/hosts/{HOST}")
    assert shown["connector"] == connector
    clone = {"host": OTHER, "ip": "192.0.2.2", key: value}
    status, answer = await registered(api, host=OTHER, connector=clone)
    assert (status, answer["code"]) == (409, "connector_taken")
    assert f"the {words} of host compute-1 ({value})" in answer["detail"]
    assert (await api.ask("GET", f"/v1/hosts/{OTHER}")).status == 404, "nothing was written"
    assert (await registered(api, connector=connector))[0] == 200, "the first goes on"
    own = {**clone, key: f"{value}2"}
    assert (await registered(api, host=OTHER, connector=own))[0] == 200
    assert (await registered(api, host=OTHER, connector=clone))[1]["code"] == "connector_taken"


async def test_a_host_that_is_no_more_does_not_keep_its_name_in_storage(api: Api) -> None:
    await registered(api, connector={"host": HOST, "initiator": INITIATOR})
    fence = {"reason": "renamed", "evidence": "it is compute-2 now", "force": True}
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", "admin", json=fence)).status == 200
    renamed = {"host": OTHER, "initiator": INITIATOR}
    assert (await registered(api, host=OTHER, connector=renamed))[0] == 200


async def test_a_connector_of_another_host_is_refused_at_registration(api: Api) -> None:
    status, answer = await registered(api, connector={"host": OTHER, "initiator": INITIATOR})
    assert (status, answer["code"]) == (409, "connector_of_another_host")
    assert "compute-1 would connect volumes as host compute-2" in answer["detail"]
    assert (await api.ask("GET", f"/v1/hosts/{HOST}")).status == 404


async def test_a_connector_is_words(api: Api) -> None:
    for connector in ({"initiator": "a b"}, {"nqn": 5}, {"ip": "\x1b[2J"}):
        assert (await registered(api, connector=connector))[0] == 400, connector


# ------------------------------------------------------------- what others would execute


PROGRAMS: list[str] = [
    "qemu+ext:///system?command=/tmp/evil",
    "qemu+ssh://compute-2/system?command=/tmp/evil",
    "qemu+ssh://-oProxyCommand=evil/system",
    "qemu+unix:///system?socket=/tmp/x",
    "xen+tls://compute-2/system",
    "test:///default",
    "",
]


async def test_a_host_cannot_name_a_program_as_the_way_to_it(api: Api) -> None:
    """libvirt's `command=` names a program that the host at the other end of a migration runs."""
    for uri in PROGRAMS:
        migration = {"uri": uri, "address": ""}
        assert (await registered(api, capabilities={"migration": migration}))[0] == 400, uri


WAYS: list[str] = [
    "qemu+tls://compute-1/system",
    "qemu+tcp://192.0.2.1:16509/system",
    "qemu+ssh://nova@[2001:db8::1]/system",
]


async def test_ways_to_another_hosts_libvirt_are_taken(api: Api) -> None:
    for uri in WAYS:
        migration = {"uri": uri, "address": ""}  # libvirt's choice
        assert (await registered(api, capabilities={"migration": migration}))[0] == 200, uri


async def test_of_a_definition_is_kept_what_another_host_may_do_and_told_what_is_not(
    api: Api,
) -> None:
    evil = "<emulator>/tmp/evil</emulator><hostdev/>"
    shown = guest(definition=DEFINITION.replace("<devices/>", f"<devices>{evil}</devices>"))
    await api.register(shown)
    row = await api.components.queries.instance(shown["server_id"])
    assert row is not None
    assert "evil" not in row["definition"]
    assert "hostdev" not in row["definition"]
    events = (await api.get("/v1/events?after=0"))["events"]
    [told] = [e["body"] for e in events if e["topic"] == "Instance.DefinitionChanged"]
    assert told["dropped"] == ["devices/emulator", "devices/hostdev"]
    sentence = SENTENCES["Instance.DefinitionChanged"](told)
    assert sentence.endswith("no other host will do: devices/emulator, devices/hostdev")
    head = await api.head()
    await api.register(shown)
    await api.changes({**shown, "definition": row["definition"]})
    await api.register(guest(server_id=shown["server_id"], definition=None))
    assert await api.head() <= head + 1, "told once, and once more when it is so no more"


@pytest.mark.parametrize(
    "odd",
    [
        f"<metadata>{DEEP}</metadata>",
        "<vcpu>99999999999999999999</vcpu>",
        "<vcpu>-1</vcpu>",
        f"<memory unit='KiB'>{'9' * 4000}</memory>",
        "<memory unit='b'>1e400</memory>",
        "<!DOCTYPE domain>",
    ],
    ids=["deep", "vcpus", "negative", "memory", "no-number", "doctype"],
)
async def test_an_odd_definition_keeps_nobody_from_the_list_of_servers(api: Api, odd: str) -> None:
    """And its host's other guests from nobody: it is dropped."""
    definition = f"<domain>{odd}<devices/></domain>"
    await api.register(guest(definition=definition), guest())
    shown = await api.get("/v2.1/servers/detail", version="2.93")
    assert len(shown["servers"]) == 2


# ------------------------------------------------------------------- invented servers


async def test_a_server_that_only_a_host_has_shown_is_marked(api: Api) -> None:
    server = await api.server()
    shown = (await api.get(f"/v2.1/servers/{server}"))["server"]
    assert shown["metadata"] == {MARK: HOST}
    [listed] = (await api.get("/v2.1/servers/detail", "member"))["servers"]
    assert listed["metadata"] == {MARK: "true"}, "users are told no name of a host"


async def test_a_server_that_was_asked_for_is_not_marked_by_its_host_showing_it(api: Api) -> None:
    await api.register()
    body = {"name": "vm", "disks": [{"volume_id": api.volume(bootable=True), "boot_index": 0}]}
    started = await api.ask("POST", "/v1/servers", "member", json=body)
    server = (await started.json())["server_id"]
    await api.played(started)
    await api.register(guest(server_id=server))
    assert (await api.get(f"/v2.1/servers/{server}"))["server"]["metadata"] == {}


async def test_a_host_cannot_give_a_known_server_to_another_project(api: Api) -> None:
    server = await api.server()
    claimed = guest(server_id=server, project_id="f" * 32, user_id="mallory")
    await api.register(claimed)
    await api.register(claimed, host=OTHER)
    shown = (await api.get(f"/v2.1/servers/{server}"))["server"]
    assert (shown["tenant_id"], shown["user_id"]) != ("f" * 32, "mallory")
    assert shown["OS-EXT-SRV-ATTR:host"] == HOST
