"""What Nova's hosts send of themselves: who may, what is kept, and what looks make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from aggregates.base import Seen
from handlers.drift.classes import CLASSES
from handlers.drift.rows import Party
from handlers.drift.seen import Cloud, SeenServer
from handlers.results.observed import ServerSeen, record
from host_agent.shared.contract.survey import MADE_S_MAX, GuestShown, Survey, SurveySent
from host_agent.shared.contract.wire import plain
from ledger.agents import calls
from ledger.http import call
from ledger.log.unit import Unit, run_optimistically
from ledger.nova_beside import differences
from projections.reads.surveys import sent_since
from tests.service.api_world import HOST, Api, eventually
from tests.service.api_world import guest as agents_guest
from tests.service.test_api_surveys import BENT, a_guest, a_survey, an_id, disk
from tests.service.test_nova_differences import LOOK, Looks, looks
from tests.surveys import survey, whole
from tests.unit.test_beside_nova import (
    CASES,
    GONE,
    NEW,
    S2,
    SOUND,
    V2,
    Change,
    S,
    V,
    after,
    guest,
    host,
    server,
    volume,
)
from tests.unit.test_beside_nova import (
    disk as disk_of,
)

__all__ = ["looks"]  # a fixture

PATH = f"/v1/hosts/{HOST}/survey/sent"
#: What only hosts can show.
OF_HOSTS = [each.name for each in CLASSES if each.name in CASES and Party.HOST in each.parties]
#: A host of the cloud's, which has no token here.
HV = "h1"


class Adopting:
    """Of a Nova whose nova-compute runs nowhere."""

    def refuse_two(self, host: str) -> None: ...


@pytest.fixture(autouse=True)
def watched(api: Api) -> None:
    _watch(api, Adopting())


def _watch(api: Api, adopting: Adopting | None) -> None:
    object.__setattr__(api.components, "adopting", adopting)


def message(shown: Survey, **over: Any) -> dict[str, Any]:
    sent = plain(SurveySent(digest=shown.digest(), made_s=0.0))
    return {**plain(shown), **sent, **over}


async def put(api: Api, body: Any, who: str = "agent-1", path: str = PATH) -> tuple[int, Any]:
    answer = await api.ask("PUT", path, who, json=body)
    return answer.status, await answer.json()


async def send(api: Api, cloud: Cloud) -> None:
    """Of each of its hosts, which have no tokens here."""
    for name, shown in cloud.hosts.items():
        told = {"digest": shown.digest(), "boot_id": shown.boot_id}
        document = msgspec.json.encode(shown).decode()
        assert await api.components.inner.send_survey(name, age_s=float, document=document, **told)


async def found_twice(api: Api, looks: Looks, cloud: Cloud) -> list[dict[str, Any]]:
    """The findings of a look, and of two more behind surveys of all its hosts."""
    await looks.see(cloud)
    for _ in range(2):
        await send(api, cloud)
        found = await looks.see(cloud)
    return found


def stored(dsn: str) -> Mapping[str, Survey]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return sent_since(connection, datetime.now(UTC) - timedelta(minutes=1))


# --- who may, and what is kept ------------------------------------------------------------------


async def test_what_a_host_sends_is_kept_and_sent_whole_only_if_it_has_changed(
    api: Api, database_url: str
) -> None:
    shown = a_survey()
    same = plain(SurveySent(digest=shown.digest(), made_s=0.0))
    assert await put(api, same) == (200, {"again": True})
    assert stored(database_url) == {}
    assert await put(api, message(shown)) == (200, {"again": False})
    assert await put(api, same) == (200, {"again": False})
    assert stored(database_url) == {HOST: shown}
    other = replace(shown, secrets=())
    assert await put(api, {**same, "digest": other.digest()}) == (200, {"again": True})
    assert await put(api, message(other)) == (200, {"again": False})
    assert stored(database_url) == {HOST: other}


async def test_it_is_no_contact_of_an_agent(api: Api) -> None:
    """Else a host that has just been adopted would count as up, and be given work."""
    assert (await put(api, message(a_survey())))[0] == 200
    async with api.connection() as connection:
        rows = await connection.execute("SELECT FROM host_contact UNION ALL SELECT FROM hosts")
        assert await rows.fetchall() == []
    assert (await api.get("/v1/hosts"))["hosts"] == []


async def test_only_the_host_itself_sends_it_and_only_where_a_nova_is_watched(api: Api) -> None:
    for who in ("agent-2", "admin", "member"):
        assert (await put(api, message(a_survey()), who))[0] == 403
    _watch(api, None)
    status, told = await put(api, message(a_survey()))
    assert (status, told["code"]) == (409, "nothing_watched")


async def test_a_host_of_the_ledgers_is_asked_and_sends_nothing(
    api: Api, database_url: str
) -> None:
    await put(api, message(a_survey()))
    await api.register()
    await api.projected()
    assert stored(database_url) == {}, "it was Nova's"
    for body in (message(a_survey()), plain(SurveySent(digest="0" * 64, made_s=0.0))):
        status, told = await put(api, body)
        assert (status, told["code"]) == (409, "survey_not_wanted")


async def test_what_a_host_sent_before_it_was_the_ledgers_answers_no_question(api: Api) -> None:
    shown = a_survey()
    await put(api, message(shown))
    await api.register(capabilities={"survey": True})
    await api.projected()
    queries = api.components.queries
    standing = await queries.survey_standing(HOST, silent_after_s=90.0)
    assert standing.why_unknown == "the host has not been asked yet"
    token = (await queries.want_surveys([HOST], silent_after_s=90.0))[HOST]
    answer = whole(shown, token)
    same = {name: answer[name] for name in ("token", "epoch", "digest")}
    path = f"/v1/hosts/{HOST}/survey"
    assert await put(api, same, path=path) == (200, {"again": True})
    assert await put(api, answer, path=path) == (200, {"again": False})


async def test_another_machine_of_that_name_is_refused_while_the_first_one_sends(
    api: Api, database_url: str
) -> None:
    first, second = a_survey(), a_survey(boot_id="b2")
    await put(api, message(first))
    status, told = await put(api, message(second))
    assert (status, told["code"]) == (409, "host_taken")
    assert stored(database_url) == {HOST: first}
    ago = "UPDATE surveys SET taken_at = taken_at - interval '151 s'"
    async with api.connection() as connection:
        await connection.execute(ago)
    assert await put(api, message(second)) == (200, {"again": False})
    assert stored(database_url) == {HOST: second}


async def test_a_survey_whose_write_waits_becomes_no_younger(api: Api, database_url: str) -> None:
    """Else it would count as made after the lists of a look that has ended meanwhile."""
    async with api.connection() as other, other.transaction():
        await other.execute("LOCK TABLE surveys IN EXCLUSIVE MODE")
        sending = asyncio.create_task(put(api, message(a_survey())))

        async def waits() -> bool:
            rows = await other.execute("SELECT FROM pg_locks WHERE NOT granted")
            return await rows.fetchone() is not None

        await eventually(waits, "a write that waits")
        now = await (await other.execute("SELECT clock_timestamp()")).fetchone()
    assert await sending == (200, {"again": False})
    assert now is not None
    with psycopg.connect(database_url) as connection:
        assert set(sent_since(connection, now[0] - timedelta(minutes=1))) == {HOST}
        assert sent_since(connection, now[0]) == {}


async def test_a_host_that_was_only_asked_while_it_was_the_ledgers_can_send(
    api: Api, database_url: str
) -> None:
    async with api.connection() as connection:
        await connection.execute(
            "INSERT INTO surveys (host, wanted, wanted_at, wanted_position)"
            " VALUES (%s, gen_random_uuid(), now(), 0)",
            [HOST],
        )
    shown = a_survey()
    same = plain(SurveySent(digest=shown.digest(), made_s=0.0))
    assert await put(api, same) == (200, {"again": True})
    assert await put(api, message(shown)) == (200, {"again": False})
    assert stored(database_url) == {HOST: shown}


async def test_what_no_host_can_show_is_refused_whole(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    for bend in BENT:
        body = {**message(a_survey(a_guest(disk()))), "token": ""}
        bend(body)
        status, told = await put(api, body)
        refused += (status, told.get("code")) == (400, "malformed")
        assert (status == 200) == (body["token"] == "x"), "which it does not have"
    assert refused == len(BENT) - 1
    for made_s in (-1, MADE_S_MAX + 1, "1", None):
        assert (await put(api, message(a_survey(), made_s=made_s)))[0] == 400
    monkeypatch.setattr(calls, "SURVEY_BYTES_MAX", call.SMALL_BYTES_MAX)
    many = a_survey(*(a_guest(*(disk() for _ in range(10))) for _ in range(200)))
    assert (await put(api, message(many)))[0] == 413
    kept = stored(database_url)[HOST]
    assert [each for each in kept.guests if len(each.disks) != 1] == []


# --- what looks make of it ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_HOSTS)
async def test_what_hosts_show_is_found_by_two_looks_and_over_after_the_fix(
    api: Api, looks: Looks, name: str
) -> None:
    cloud = after(*CASES[name])
    every = await found_twice(api, looks, cloud)
    [one] = [each for each in every if each["drift_class"] == name]
    assert one["state"] == "confirmed"
    shown = await api.get(f"/v1/drift/{one['finding_id']}")
    assert shown["by_hand"].startswith("It belongs to Nova, so the ledger does not repair it.")
    assert "nova" in shown["differs"]
    assert shown["acts"] == ["ignore"]
    sound = replace(after(), hosts={**dict.fromkeys(cloud.hosts, survey()), **SOUND.hosts})
    assert await looks.see(sound) != [], "no host has shown itself"
    await send(api, sound)
    assert await looks.see(sound) == []


async def test_a_survey_counts_for_one_look_and_only_if_it_was_made_after_the_one_before(
    api: Api, looks: Looks, database_url: str
) -> None:
    """One that is older than the lists lacks what was attached since."""
    cloud = after(*CASES["disk_missing"])
    await looks.see(cloud)
    for _ in range(3):
        await send(api, cloud)
        assert await looks.see(cloud) == []
        assert await looks.see(cloud) == [], "nobody has shown it again"
    await send(api, cloud)
    assert await looks.see(cloud) == []
    await send(api, cloud)
    made_before = "UPDATE surveys SET taken_at = taken_at - interval '1 hour'"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(made_before)
        assert await looks.see(cloud) == [], "it took an hour to make"
        connection.execute("UPDATE surveys SET taken_at = clock_timestamp() + interval '1 hour'")
        for _ in range(2):
            assert await looks.see(cloud) == [], "the database's clock was set back"


async def test_a_host_that_reboots_shows_it_twice_after_that(api: Api, looks: Looks) -> None:
    cloud = after(*CASES["disk_missing"])
    await looks.see(cloud)
    await send(api, cloud)
    await looks.see(cloud)
    booted = {HV: replace(cloud.hosts[HV], boot_id="b2")}
    async with api.connection() as connection:
        await connection.execute("UPDATE surveys SET taken_at = taken_at - interval '151 s'")
    await send(api, replace(cloud, hosts=booted))
    [one] = await looks.see(cloud)
    assert one["state"] == "suspected"
    await send(api, replace(cloud, hosts=booted))
    [one] = await looks.see(cloud)
    assert one["state"] == "confirmed"


@pytest.mark.parametrize(
    "change",
    [
        server(S, vm_state="rescued"),
        volume(V, status="detaching", updated_at=NEW),
        volume(V, migration_status="migrating"),
    ],
    ids=["rescued", "detaching", "migrating"],
)
async def test_disks_that_are_being_worked_on_neither_differ_nor_are_they_right(
    api: Api, looks: Looks, change: Change
) -> None:
    cloud = after(*CASES["disk_missing"])
    await looks.see(after(change))
    for _ in range(2):
        await send(api, cloud)
        assert await looks.see(change(cloud)) == []
    for _ in range(2):
        await send(api, cloud)
        every = await looks.see(cloud)
    assert len(every) == 1
    await send(api, after())
    assert await looks.see(change(cloud)) == every


async def test_what_a_host_could_not_see_ends_nothing(api: Api, looks: Looks) -> None:
    cloud = after(*CASES["disk_missing"])
    every = await found_twice(api, looks, cloud)
    assert len(every) == 1
    for part in ("guests", "storage"):
        shown = replace(SOUND.hosts[HV], blind=(part,), why_blind=("it hangs",))
        await send(api, replace(after(), hosts={HV: shown}))
        every = await looks.see(after())
        assert len(every) == (part == "guests")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("disk_unlabelled", guest(S, disk_of())),
        ("disk_size_differs", guest(S, disk_of(size_bytes=None))),
        ("disk_source_differs", guest(S, disk_of(source=None))),
    ],
)
async def test_what_a_host_could_not_tell_of_a_disk_ends_nothing(
    api: Api, looks: Looks, name: str, shown: GuestShown
) -> None:
    """As if it could not read its storage, or its guest was busy."""
    cloud = after(*CASES[name])
    every = await found_twice(api, looks, cloud)
    assert [each["drift_class"] for each in every] == [name]
    await send(api, after(host(shown)))
    assert await looks.see(cloud) == every
    await send(api, after())
    assert await looks.see(after()) == []


async def test_a_guest_on_two_hosts_is_over_only_when_both_have_shown_themselves(
    api: Api, looks: Looks
) -> None:
    cloud = after(*CASES["guest_twice"])
    await found_twice(api, looks, cloud)
    await send(api, after())
    assert {each["drift_class"] for each in await looks.see(after())} == {
        "guest_twice",
        "guest_elsewhere",
    }
    await send(api, after(host(guest(S2), name="h2")))
    assert await looks.see(after()) == []


async def test_no_host_keeps_what_others_show_from_being_told(
    api: Api, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "OF_HOST_MAX", 2)
    gone = [UUID(int=number) for number in range(4)]
    guests = tuple(guest(str(each)) for each in gone)
    cloud = after(host(*SOUND.hosts[HV].guests, *guests), host(guest(S2), guest(GONE), name="h2"))
    cloud = replace(cloud, servers={**cloud.servers, **dict.fromkeys(map(str, gone))})
    await looks.see(cloud)
    for expected in ([], [HV, HV, "h2"], [HV, HV, HV, HV, "h2"]):
        await send(api, cloud)
        found = await looks.see(cloud)
        assert sorted(each["host"] for each in found) == sorted(expected)


async def test_findings_of_a_host_that_becomes_the_ledgers_are_over(api: Api, looks: Looks) -> None:
    shown = survey(guests=(guest(S),))
    cloud = replace(after(server(S, host=HOST), *CASES["disk_missing"]), hosts={HOST: shown})
    await looks.see(cloud)
    for _ in range(2):
        assert (await put(api, message(shown)))[0] == 200
        await looks.see(cloud)
    assert "disk_missing" in {each["drift_class"] for each in await looks.see(cloud)}
    await api.register(agents_guest(server_id=S))
    await api.projected()
    every = await looks.see(after(server(S, host=HOST)))
    assert "disk_missing" in {each["drift_class"] for each in every}, "of a server of Nova's"
    looks.ours = frozenset({S})
    assert await looks.see(cloud) == []


async def test_a_host_that_nova_does_not_know_by_that_name_has_no_guests(
    api: Api, looks: Looks
) -> None:
    """Those of hv1 that sends as hv1.example.org would all be elsewhere."""
    cloud = after(*CASES["guest_elsewhere"])
    looks.reader.computes = ("h1",)
    for _ in range(3):
        await send(api, cloud)
        assert await looks.see(cloud) == []
    assert looks.reader.requests == 2, "one in a look, and none before anybody's survey counts"
    looks.reader.computes = ("h1", "h2")
    for _ in range(2):
        await send(api, cloud)
        every = await looks.see(cloud)
    looks.reader.computes = ("h1",)
    assert len(every) == 2
    await send(api, after(host(guest(S2), name="h2")))
    assert await looks.see(after()) == every
    await send(api, after(host(name="h2")))
    assert await looks.see(after()) == [], "it is gone for good: an empty one in its name"


async def test_a_guest_of_the_ledgers_own_server_on_novas_host_is_none_of_novas(
    api: Api, looks: Looks
) -> None:
    """Nova says 404 of the server: that it was deleted would be wrong."""
    cloud = after(*CASES["guest_of_deleted"])
    looks.ours = frozenset({GONE})
    await looks.see(cloud)
    for _ in range(2):
        await send(api, cloud)
        assert await looks.see(cloud) == []


async def test_what_a_host_shows_makes_its_volume_safe_from_cinders_question(
    api: Api, looks: Looks
) -> None:
    """It is a finding that shows the volume in the guest, as that of a host of the ledger."""
    cloud = after(*CASES["disk_unknown"])
    await found_twice(api, looks, cloud)
    [found] = await api.components.queries.shown(S, [V2])
    assert (found.drift_class, found.hosts) == ("disk_unknown", (HV,))


async def test_hosts_of_novas_are_told_with_when_they_were_surveyed(api: Api) -> None:
    for name in (HOST, HV):
        _seen_at_nova(api, name)
    await api.projected()
    await put(api, message(a_survey(), made_s=30.0))
    one, other = (await api.get("/v1/hosts?observed=true"))["observed"]
    age = datetime.now(UTC) - datetime.fromisoformat(one["surveyed_at"])
    assert (one["host"], round(age.total_seconds() / 10)) == (HOST, 3)
    assert (other["host"], other["surveyed_at"]) == (HV, None)


def _seen_at_nova(api: Api, name: str) -> None:
    """The host, with a server."""
    seen, id_ = Seen(origin="nova", after=None, before="2026-11-27T12:01:00+00:00"), an_id()
    server = SeenServer(id=id_, host=name)
    sight = ServerSeen(server_id=id_, server=server, attachments=(), seen=seen, asked=seen)

    def change(unit: Unit) -> int:
        record(sight, unit)
        return unit.save(LOOK)

    run_optimistically(api.components.requests._store, change)
