"""What differs beside a Nova that is watched is a finding: two looks see it, nobody mends it, and a
look that could see it ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from keystoneauth1.adapter import Adapter

from aggregates.base import Actor, EventContext
from handlers.drift import judge
from handlers.drift.rows import UNKNOWN, Unknown
from handlers.drift.seen import Cloud, SeenAttachment, SeenServer
from ledger.nova_beside import differences, reads
from ledger.nova_beside.differences import Differences, theirs
from ledger.nova_beside.reads import CloudReader, Servers
from ledger.reconcile.reads import LedgerReads
from projections.running.tables import prepare
from tests.service.api_world import HOST, Api
from tests.unit.test_beside_nova import CASES, GONE, S, after

LOOK = EventContext(actor=Actor(name="observer"), request_id="req-look", cause="observation")
#: What the lists of a Nova and its Cinder show without any host's word, as our looks call it.
NAMES = [
    *("owner_gone", "reservation_unknown", "attachment_unknown", "attachment_lost"),
    *("attachment_host_differs", "volume_gone", "volume_status_differs", "volume_stuck"),
]


class Reader(CloudReader):
    """Nova tells the mappings of a server as its list does, unless it is `silent`."""

    silent = False
    computes: tuple[str, ...] = ("h1", "h2", HOST)

    def __init__(self) -> None:
        nobody: Any = None
        super().__init__(nobody, nobody, nobody)

    def get(self, of: Adapter, path: str, name: str, **query: Any) -> Any:
        assert (path, query) == ("/os-services", {"binary": "nova-compute"})
        self.requests += 1
        return [{"host": host} for host in self.computes]

    def mappings(
        self, servers: Mapping[str, SeenServer | Unknown | None], asked: Iterable[str]
    ) -> Servers:
        return {} if self.silent else {id_: servers[id_] for id_ in asked}


class Looks:
    """Looks at a cloud, each a minute after the one before, or as `apart_s` says."""

    def __init__(self, api: Api, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._api, self._dsn, self._at = api, dsn, 1000.0
        self._of_process = Differences(api.components.requests._store)
        self.ours = frozenset[str]()
        self.reader = Reader()
        monkeypatch.setattr(differences, "time", self)

    def monotonic(self) -> float:
        return self._at

    async def see(self, cloud: Cloud, apart_s: float = judge.APART_S) -> list[dict[str, Any]]:
        """The open findings after the look."""
        self._at += apart_s
        await asyncio.to_thread(self._see, cloud)
        await self._api.projected()
        answer = await self._api.ask("GET", "/v1/drift", "admin")
        return list((await answer.json())["findings"])

    def _see(self, cloud: Cloud) -> None:
        """With what hosts have sent, and not the cloud's own."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            cloud = theirs(replace(cloud, hosts=self._of_process.hosts(connection)), self.ours)
            self._of_process.see(connection, self.reader, cloud, str(uuid4()), LOOK)


@pytest.fixture
def looks(api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(api, database_url, monkeypatch)


async def test_what_two_looks_see_is_confirmed_told_with_what_mends_it_and_ends(
    api: Api, looks: Looks
) -> None:
    for name in NAMES:
        assert await looks.see(after(*CASES[name])) == []
        every = await looks.see(after(*CASES[name]))
        [one] = [each for each in every if each["drift_class"] == name]
        assert (one["state"], one["repair"]) == ("confirmed", None)
        path = f"/v1/drift/{one['finding_id']}"
        shown = await (await api.ask("GET", path, "admin")).json()
        assert shown["by_hand"].startswith("It belongs to Nova, so the ledger does not repair it.")
        assert "nova" in shown["differs"]
        assert shown["acts"] == ["ignore"]
        refused = await api.ask("POST", f"{path}/repair", "admin", json={"reason": "x"})
        assert refused.status == 409
        assert "It belongs to Nova" in await refused.text()
        assert await looks.see(after()) == [], "it is over"


async def test_what_is_worst_beside_nova_is_told_as_such_with_its_command(
    api: Api, looks: Looks
) -> None:
    cloud = after(*CASES["owner_gone"])
    await looks.see(cloud)
    [one] = await looks.see(cloud)
    assert one["severity"] == "critical", "any member can pull it"
    shown = await (await api.ask("GET", f"/v1/drift/{one['finding_id']}", "admin")).json()
    assert "CVE-2023-2088" in shown["meaning"]
    assert f"attachment delete {one['attachment_id']}`" in shown["by_hand"]


async def test_looks_that_say_the_same_append_nothing_and_one_alone_or_too_soon_nothing_either(
    api: Api, looks: Looks
) -> None:
    cloud = after(*CASES["attachment_host_differs"])
    head = await _head(api)
    await looks.see(cloud)
    await looks.see(cloud, apart_s=judge.APART_S - 1)
    await looks.see(after())
    await looks.see(cloud)
    assert await _head(api) == head
    assert len(await looks.see(cloud)) == 1
    head = await _head(api)
    await looks.see(cloud)
    assert await _head(api) == head


async def test_a_look_that_could_not_see_it_ends_nothing(looks: Looks) -> None:
    cloud = after(*CASES["attachment_unknown"])
    await looks.see(cloud)
    [one] = await looks.see(cloud)
    assert one["drift_class"] == "attachment_unknown"
    server = after().servers[S]
    assert isinstance(server, SeenServer)
    for blind in (UNKNOWN, replace(server, known=False), replace(server, task_state="rebooting")):
        assert await looks.see(replace(after(), servers={S: blind})) != []
    looks.reader.silent = True
    assert await looks.see(cloud) != [], "Nova does not tell what it has mapped"
    unasked = {id_: each for id_, each in after().servers.items() if id_ != S}
    assert await looks.see(replace(after(), servers=unasked)) != [], "too much to ask for"
    assert await looks.see(after()) == []


async def test_what_is_ours_is_none_of_novas(looks: Looks) -> None:
    """Nova says 404 of a server of ours: that is no attachment that any member may pull."""
    ours = frozenset({GONE})
    cloud = after(*CASES["owner_gone"])
    for _ in range(2):
        assert await looks.see(theirs(cloud, ours)) == []
    await looks.see(cloud)
    assert len(await looks.see(cloud)) == 1
    assert await looks.see(theirs(cloud, ours)) == [], "it was taken over"


async def test_a_look_of_ours_ends_none_of_them(looks: Looks, database_url: str) -> None:
    cloud = after(*CASES["attachment_host_differs"], *CASES["volume_status_differs"])
    await looks.see(cloud)
    assert len(await looks.see(cloud)) == 2
    with psycopg.connect(database_url, autocommit=True) as connection:
        prepare(connection)
        reads, asked = LedgerReads(connection, {}), {"look_id": str(uuid4())}
        subjects = ["attachment", "volume"]
        assert [*reads.scoped("unseen", "finding_id", None, subjects=subjects, **asked)] == []
        assert reads.rows("unseen_on", host="h2", servers=[S], **asked) == []


async def test_so_many_become_findings_and_the_worst_of_them(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "FINDINGS_MAX", 1)
    cloud = after(*CASES["owner_gone"], *CASES["attachment_host_differs"])
    await looks.see(cloud)
    [one] = await looks.see(cloud)
    assert one["drift_class"] == "owner_gone"
    assert len(await looks.see(cloud)) == 2, "the next look goes on"


async def test_looks_go_round_where_there_is_too_much_to_ask_for(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those that last, first by their ids, would hide all others (CVE-2023-2088)."""
    monkeypatch.setattr(reads, "SINGLES_MAX", 2)
    servers = [str(UUID(int=n)) for n in range(1, 6)]
    gone = {
        id_: SeenAttachment(id=id_, volume_id=id_, server_id=id_, status="attached", host="h9")
        for id_ in servers
    }
    told: set[str] = set()
    for _ in range(len(servers) + 1):
        seen = dict.fromkeys(looks.reader.few(servers, "servers that Nova does not list"))
        cloud = replace(after(), servers=seen, attachments=gone, volumes={})
        told |= {each["server_id"] for each in await looks.see(cloud)}
    assert told == set(servers)


async def _head(api: Api) -> int:
    return int((await (await api.ask("GET", "/v1/events/checkpoint", "admin")).json())["position"])
