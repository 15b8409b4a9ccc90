"""What Nova and Cinder of somebody else answer, and what is made of it: late, halves, lies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock
from uuid import UUID

import pytest
from keystoneauth1 import exceptions

from handlers.drift.beside_nova import found
from handlers.drift.rows import UNKNOWN
from handlers.drift.seen import Cloud, SeenServer
from handlers.results.adopt import ServerFacts
from ledger.config import Observe
from ledger.native import hosts
from ledger.nova_beside import observer, one_host, reads
from ledger.nova_beside.differences import STUCK
from ledger.nova_beside.reads import CloudReader, CutListError
from tests.unit.test_beside_nova import guest, survey

S, S2, S3 = (str(UUID(int=n)) for n in range(1, 4))
HELD = "os-extended-volumes:volumes_attached"
DATE = {"Date": "Sun, 29 Nov 2026 03:00:00 GMT"}

Row = dict[str, Any]


def server(id_: str, *volumes: str) -> Row:
    place = {"OS-EXT-SRV-ATTR:host": "hv1", "OS-EXT-STS:vm_state": "active"}
    return {"id": id_, HELD: [{"id": each} for each in volumes], **place}


def of_a_cell_that_is_down(id_: str) -> Row:
    return {"id": id_, "status": "UNKNOWN", "tenant_id": "p", "links": []}


class Service:
    """Tells `answers` by path, or raises them.  Any other path is 404; a list has one page."""

    session = SimpleNamespace(auth=None)

    def __init__(self, **answers: Any) -> None:
        self.answers = {f"/{path.replace('__', '/')}": told for path, told in answers.items()}
        self.asked: list[str] = []

    def get(self, path: str, params: Row, headers: Row) -> Any:
        assert headers
        self.asked.append(path)
        told = self.answers.get(path, _not_found())
        if callable(told):
            told = told(params)
        if isinstance(told, list):
            name = path.split("/")[1]
            told = {name: [] if "marker" in params else told}
        if isinstance(told, Exception):
            raise told
        text = told if isinstance(told, str) else json.dumps(told)
        return SimpleNamespace(headers=DATE, json=lambda: json.loads(text))


def migrations(*servers: str) -> Callable[[Row], Row]:
    """One of each of these, two a page, as Nova lists them."""
    rows = [{"uuid": f"m{id_}", "instance_uuid": id_, "status": "finished"} for id_ in servers]

    def page(query: Row) -> Row:
        begin = [None, *(row["uuid"] for row in rows)].index(query.get("marker"))
        return {"migrations": rows[begin : begin + 2]}

    return page


def _not_found() -> exceptions.NotFound:
    told: Any = SimpleNamespace(json=lambda: {"itemNotFound": {}})
    return exceptions.NotFound(response=told)


class World:
    """A cloud in which each of these servers has a volume by an attachment, as Cinder tells."""

    def __init__(self, *servers: str) -> None:
        self.nova = Service(servers__detail=[])
        self.cinder = Service(attachments=[], volumes__detail=[])
        any_nova: Any = self.nova
        any_cinder: Any = self.cinder
        self.reader = CloudReader(any_nova, any_cinder, lambda: 1.8e9)
        for each in servers:
            self.attach(each)

    def attach(self, server_id: str, host: str | None = "hv1") -> str:
        """The volume, of the same id as its attachment."""
        rows, volumes = (self.cinder.answers[p] for p in ("/attachments", "/volumes/detail"))
        id_ = str(UUID(int=100 + len(rows)))
        rows.append({"id": id_, "volume_id": id_, "instance": server_id, "status": "attached"})
        at = {"attachment_id": id_, "host_name": host, "attached_at": "2026-11-01T00:00:00"}
        volume = {"id": id_, "status": "in-use", "attachments": [at]}
        volumes.append({**volume, "os-vol-tenant-attr:tenant_id": "p"})
        return id_

    def maps(self, server_id: str, told: Any) -> None:
        self.nova.answers[f"/servers/{server_id}/os-volume_attachments"] = told

    def classes(self, cloud: Cloud) -> list[tuple[str, str | None]]:
        return [(each.kind.name, each.about.server_id) for each in found(cloud, STUCK)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Each answer takes a minute, as Nova's do while a cell is down."""
    minutes = itertools.count(0, 60)
    monkeypatch.setattr(reads, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    return minutes


@pytest.mark.parametrize("every_mapping", [False, True])
def test_a_server_listed_without_its_volumes_is_unknown_unless_nova_tells_its_mappings(
    every_mapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So Nova lists it, with 200, if its cell fails between two of its questions."""
    world = World(S, S2, S3)
    rows = world.nova.answers["/servers/detail"]
    rows += [server(each) for each in (S, S2, S3)]
    world.maps(S, {"volumeAttachments": []})
    world.maps(S2, exceptions.InternalServerError())
    monkeypatch.setattr(reads, "SINGLES_MAX", 2)  # S3 is one too many
    cloud = world.reader.cloud({}, every_mapping=every_mapping)
    assert world.classes(cloud) == [("attachment_unknown", S)]
    assert cloud.servers[S2] is cloud.servers[S3] is UNKNOWN


def test_what_is_too_much_for_a_round_is_asked_for_in_two_rounds_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "SINGLES_MAX", 4)
    ids = [str(UUID(int=n)) for n in range(1, 10)]
    world, rounds = World(*ids), []
    for _ in range(6):
        rounds.append(set(world.reader.cloud({}).servers))
        assert set(world.reader.cloud({}).servers) == rounds[-1], "a survey compares the same ones"
        assert "5 of 9 servers that Nova does not list" in world.reader.unread
        world.reader.go_round()
    both = [one & other for one, other in itertools.pairwise(rounds)]
    assert set.union(*both) == set(ids)
    assert {len(each) for each in rounds} == {4}


def test_no_host_keeps_what_others_show_from_being_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "SINGLES_MAX", 4)
    monkeypatch.setattr(reads, "OF_HOST_MAX", 2)
    many = [guest(str(UUID(int=n))) for n in range(10, 19)]
    world, asked = World(S2), set[str]()
    for _ in range(8):
        cloud = world.reader.cloud({"h1": survey(*many), "h2": survey(guest(S))})
        assert (cloud.servers[S], len(cloud.servers)) == (None, 4)
        asked |= cloud.servers.keys()
        world.reader.go_round()
    assert asked == {S, S2, *(each.server_id for each in many)}


def test_a_server_that_is_deleted_while_it_is_asked_is_not_told_of() -> None:
    world = World(S)
    world.nova.answers["/servers/detail"].append(server(S))
    cloud = world.reader.cloud({})
    assert f"/servers/{S}/os-volume_attachments" in world.nova.asked
    assert world.classes(cloud) == []


def test_servers_of_a_cell_that_is_down_are_in_no_list_and_are_waited_for_no_longer_than_so(
    late: Iterator[int],
) -> None:
    lost = [str(UUID(int=n)) for n in range(1, 40)]
    world = World(*lost)
    for each in lost:
        world.nova.answers[f"/servers/{each}"] = {"server": of_a_cell_that_is_down(each)}

    def pause(_: float) -> None:
        """The observer's own, which is no wait for Nova."""
        next(late)

    world.reader.rest = pause
    cloud = world.reader.cloud({})
    assert world.classes(cloud) == []
    assert len([path for path in world.nova.asked if path != "/servers/detail"]) == 11
    assert "its cell does not answer" in world.reader.unread[0]
    assert "waited in vain" in world.reader.unread[-1]
    asked = len(world.nova.asked)
    world.reader.begin()
    world.reader.server(lost[0])
    assert len(world.nova.asked) == asked + 1, "the next round asks again"


def test_answers_that_come_late_and_tell_something_are_all_waited_for(late: Iterator[int]) -> None:
    there = [str(UUID(int=n)) for n in range(1, 40)]
    world = World(*there)
    assert len(world.classes(world.reader.cloud({}))) == len(there), "Nova says 404 of each"


def test_whoever_answers_an_error_is_left_in_peace_as_long_as_after_an_answer(
    late: Iterator[int],
) -> None:
    world = World()
    rests: list[float] = []
    world.reader.rest = rests.append
    world.nova.answers[f"/servers/{S}"] = exceptions.InternalServerError()
    assert world.reader.server(S) is UNKNOWN
    assert rests == [60]


def test_one_answer_that_comes_too_late_ends_no_look_and_a_service_that_is_away_does() -> None:
    world = World(S, S2)
    world.nova.answers[f"/servers/{S}"] = exceptions.ConnectTimeout("timed out")
    assert world.classes(world.reader.cloud({})) == [("owner_gone", S2)]
    assert world.reader.unread == [f"/servers/{S}: timed out"]
    world.nova.answers[f"/servers/{S}"] = exceptions.ConnectFailure("refused")
    with pytest.raises(exceptions.ConnectFailure):
        world.reader.cloud({})


@pytest.mark.parametrize("told", ["<html>Please log in</html>", "[]", "null", {"servers": []}])
def test_what_is_no_answer_of_novas_tells_nothing(told: Any) -> None:
    world = World(S)
    world.nova.answers[f"/servers/{S}"] = told
    assert world.reader.server(S) is UNKNOWN
    [unread] = world.reader.unread
    assert unread.startswith(f"/servers/{S}: what answered is not its API")
    world.nova.answers["/servers/detail"] = told if told != {"servers": []} else {"server": []}
    with pytest.raises(
        exceptions.ClientException, match="/servers/detail: what answered is not its"
    ):
        world.reader.cloud({})


@pytest.mark.parametrize(("who", "path"), [("Nova", "/servers/detail"), ("Cinder", "/attachments")])
def test_who_does_not_answer_is_named(who: str, path: str) -> None:
    """keystoneauth's own text does not say which of both it was."""
    world = World(S)
    asked = {"Nova": world.nova, "Cinder": world.cinder}[who]
    asked.answers[path] = exceptions.ServiceUnavailable()
    with pytest.raises(exceptions.ClientException, match=f"{who}: GET {path}: Service Unavail"):
        world.reader.cloud({})
    asked.answers[path] = exceptions.ServiceUnavailable(url="http://keystone/v3/auth/tokens")
    with pytest.raises(exceptions.ClientException, match=r"^Keystone, for a token: Service"):
        world.reader.cloud({})
    asked.answers[path] = exceptions.ServiceUnavailable(url=f"http://it/v2.1{path}?limit=500")
    with pytest.raises(exceptions.ClientException, match=f"{who}: GET {path}: Service Unavail"):
        world.reader.cloud({})


@pytest.mark.parametrize("gone", [1, 4, 1000])
def test_a_list_that_can_go_on_behind_none_of_its_rows_is_begun_again_and_not_for_ever(
    gone: int,
) -> None:
    """`gone`: for so many requests a row that was just listed is there no more."""
    world = World(S)
    left = iter(range(gone))

    def get(path: str, params: Row, headers: Row) -> Any:
        world.nova.asked.append(path)
        assert len(world.nova.asked) < 50
        if "marker" in params and next(left, None) is not None:
            raise exceptions.BadRequest
        rows = [] if "marker" in params else [server(S)]
        return SimpleNamespace(headers=headers, json=lambda: {"servers": rows})

    world.nova.get = get  # type: ignore[method-assign]
    if gone < 1000:
        assert set(world.reader.lists({}).servers) == {S}
    else:
        with pytest.raises(CutListError, match="begun 6 times"):
            world.reader.lists({})


def test_a_cinder_that_tells_no_time_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """uWSGI by itself sends no Date."""
    monkeypatch.delitem(DATE, "Date")
    world = World(S)
    cloud = world.reader.cloud({})
    assert cloud.now.timestamp() == world.reader.clock()
    assert world.classes(cloud) == [("owner_gone", S)]


@pytest.mark.parametrize("named", [f"urn:{S.replace('-', '')}", S[:-1] + "A", S.replace("-", "")])
def test_a_server_that_is_called_as_no_server_is_nobodys(named: str) -> None:
    """Cinder takes from any member what Python takes for a UUID; no database of ours does."""
    world = World(named)
    cloud = world.reader.cloud({})
    assert set(cloud.servers) == set()
    assert world.classes(cloud) == []
    assert named in world.reader.unread[0]


def test_an_attachment_of_no_server_is_nobodys() -> None:
    world = World()
    volume = world.attach(S)
    del world.cinder.answers["/attachments"][0]["instance"]
    cloud = world.reader.cloud({})
    assert world.classes(cloud) == []
    assert cloud.attachments[volume].server_id is None
    assert world.reader.unread == []


def test_a_hosts_name_is_the_word_of_a_member_and_is_told_so_that_it_can_be_shown() -> None:
    world = World()
    volume = world.attach(S, "a\0b\n")
    world.nova.answers["/servers/detail"].append(server(S, volume))
    cloud = world.reader.cloud({})
    assert cloud.attachments[volume].host == r"a\u0000b\u000a"
    [differs] = found(cloud, STUCK)
    assert differs.kind.name == "attachment_host_differs"
    held = {"attachment_id": volume, "server_id": S, "host_name": "a\0b"}
    assert one_host._holder(held).host == r"a\u0000b"


def test_rows_without_a_status_are_read() -> None:
    world = World()
    volume = world.attach(S)
    for path in ("/attachments", "/volumes/detail"):
        world.cinder.answers[path][0]["status"] = None
    world.nova.answers["/servers/detail"].append(server(S, volume))
    cloud = world.reader.cloud({})
    assert isinstance(cloud.servers[S], SeenServer)
    assert world.classes(cloud) == [("attachment_status_differs", S)]


#: What Nova says of a server that is elsewhere and has an open migration from or to the host, and
#: whether it may still come here.
ELSEWHERE: dict[str, tuple[Any, bool]] = {
    "on its way": ({"OS-EXT-STS:task_state": "migrating"}, True),
    "to be reverted": ({"OS-EXT-STS:vm_state": "resized"}, True),
    "its cell is down": (None, True),
    "at rest, the record was left": ({}, False),
    "deleted, the record was left": (_not_found(), False),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_migration_of_who_is_elsewhere_counts_if_it_may_end_here(name: str) -> None:
    world, (told, comes) = World(), ELSEWHERE[name]
    if isinstance(told, dict):
        told = {"server": {**server(S), "OS-EXT-SRV-ATTR:host": "hv2", **told}}
    world.nova.answers |= {
        "/os-services": {"services": []},
        "/os-migrations": migrations(S),
        f"/servers/{S}": told or {"server": of_a_cell_that_is_down(S)},
    }
    assert one_host.read(world.reader, "hv1").moving == ({S: "finished"} if comes else {})


def test_of_many_migrations_that_were_left_some_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, left = World(), (S, S2, S3)
    monkeypatch.setattr(one_host, "ELSEWHERE_MAX", 2)
    world.nova.answers |= {
        "/os-services": {"services": []},
        "/os-migrations": migrations(*left),
    }
    assert one_host.read(world.reader, "hv1").moving == {S3: "finished"}, "of it nothing is known"
    assert "1 of 3 servers that are elsewhere" in world.reader.unread[0]


#: Of Nova's server: what is a file of its host, so that it is moved to no other.
FILES: list[tuple[Row, bool]] = [
    ({"image": "", "config_drive": "", "flavor": {"ephemeral": 0, "swap": 0}}, False),
    ({"image": {"id": "i"}}, True),
    ({"config_drive": "True"}, True),
    ({"flavor": {"ephemeral": 1}}, True),
    ({"flavor": {"swap": 512}}, True),
]


@pytest.mark.parametrize(("shown", "local"), FILES)
def test_disks_that_are_files_of_the_host_are_told(shown: Row, local: bool) -> None:
    world = World()
    world.nova.answers["/servers/detail"] = [{**server(S), **shown}]
    facts = one_host.read_server(world.reader, S)
    assert isinstance(facts, ServerFacts)
    assert facts.local_disks is local


def test_a_nova_that_hides_hosts_is_not_compared() -> None:
    """Of which a site's own policy lets somebody list all servers, and see less of each."""
    world, shown = World(S), server(S)
    del shown["OS-EXT-SRV-ATTR:host"]
    world.nova.answers["/servers/detail"] = [shown]
    with pytest.raises(CutListError) as refused:
        world.reader.lists({})
    assert "os-extended-server-attributes" in refused.value.args[1]
    assert "os-extended-server-attributes" in observer._told_nothing(refused.value)
    assert "os-extended-server-attributes" in str(hosts._unread(refused.value).hint)


def test_a_nova_that_begins_to_hide_hosts_ends_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that it told something of; the next look at everything says so."""
    world, shown = World(S), server(S)
    del shown["OS-EXT-SRV-ATTR:host"]
    world.nova.answers["/servers/detail"] = [shown]
    monkeypatch.setattr(observer, "DbConnection", MagicMock())
    monkeypatch.setattr(observer, "reader_of", lambda *_: world.reader)
    monkeypatch.setattr(observer, "known", Mock(ours=lambda *_: set(), servers=lambda *_: {}))
    store: Any = None
    watching = observer.Observer("", store, Observe(), lambda: 1.8e9)
    watching._look_at(S, state := observer.ObserverState())
    assert state.since == {}


def test_the_role_of_an_administrator_is_it_in_any_case_of_letters() -> None:
    """As Nova's and Cinder's policies compare it."""
    world, who = World(), SimpleNamespace(role_names=["Admin"], project_id="p")
    asks: Any = SimpleNamespace(auth=SimpleNamespace(get_access=lambda _: who))
    world.cinder.session = asks
    world.reader.believe({"p"})
    who.role_names = ["reader"]
    with pytest.raises(CutListError):
        world.reader.believe({"p"})


def test_a_volume_that_a_member_wrote_in_capitals_is_known() -> None:
    world, volume = World(S2), str(UUID(int=0xABC))
    world.nova.answers["/servers/detail"] = [server(S, volume.upper())]
    mapping = {"volumeId": volume.upper(), "attachment_id": volume, "bdm_uuid": volume}
    world.maps(S, {"volumeAttachments": [mapping]})
    seen = world.reader.cloud({}, every_mapping=True).servers[S]
    assert isinstance(seen, SeenServer)
    assert seen.volumes == (volume,)
    assert seen.attachments == {volume: volume}


def test_a_row_whose_id_is_none_is_left_out_and_what_cannot_be_stored_is_escaped() -> None:
    world, volume = World(S2), str(UUID(int=1000))
    texts = ("tenant_id", "user_id", "OS-EXT-STS:vm_state", "OS-EXT-STS:task_state")
    row = {**server(S), **dict.fromkeys(texts, "a\0")}
    world.nova.answers["/servers/detail"] = [row, server("garbage 1")]
    strange = {"id": "garbage 2", "volume_id": volume, "instance": S, "status": "attached"}
    other = {**strange, "id": str(UUID(int=1001)), "volume_id": "garbage 3"}
    world.cinder.answers["/attachments"] += [strange, other]
    cloud = world.reader.cloud({})
    assert set(cloud.servers) == {S, S2}
    assert len(cloud.attachments) == 1
    assert all(f"garbage {number}" in str(world.reader.unread) for number in (1, 2, 3))
    seen = cloud.servers[S]
    assert isinstance(seen, SeenServer)
    shown = (seen.project_id, seen.user_id, seen.vm_state, seen.task_state)
    assert set(shown) == {r"a\u0000"}


@pytest.mark.parametrize("odd", ["volumeId", "attachment_id", "bdm_uuid"])
def test_of_a_server_with_an_id_that_is_none_nothing_is_said(odd: str) -> None:
    world = World(S)
    [volume] = world.cinder.answers["/attachments"]
    mapping = {"volumeId": volume["id"], "attachment_id": volume["id"], "bdm_uuid": volume["id"]}
    told = {"volumeAttachments": [{**mapping, odd: "garbage"}]}
    world.nova.answers["/servers/detail"] = [server(S, volume["id"]), server(S2, "rubbish")]
    world.maps(S, told)
    cloud = world.reader.cloud({}, every_mapping=True)
    assert cloud.servers == {S: UNKNOWN, S2: SeenServer(id=S2, known=False, odd="rubbish")}
    assert "garbage" in str(world.reader.unread)
    assert "rubbish" in str(world.reader.unread)
    assert "cell" not in str(world.reader.unread)
    assert world.classes(cloud) == []
