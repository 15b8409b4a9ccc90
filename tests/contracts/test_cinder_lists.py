"""The contract of Cinder's lists of all projects: simulated over HTTP, and in the lab real."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import pytest

from host_agent.shared.cinder.lists import CinderLists, ListedAttachment, ListedVolume
from host_agent.shared.cinder.settings import CinderSettings
from tests.contracts import cinder_worlds as worlds
from tests.contracts.cinder_worlds import (
    SimulatedWorld,
    World,
    attached,
    connector,
    new_uuid,
    refusal,
)


class Paged(Protocol):
    def __call__(self, after: list[str], limit: int) -> list[Any]: ...


@pytest.fixture(params=[each for each in worlds.ALL if each != "direct"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with worlds.WORLDS[request.param]() as made:
        yield made


@pytest.fixture
def simulated() -> Iterator[SimulatedWorld]:
    with worlds.http_world() as made:
        yield made


@pytest.fixture
def lists(world: World) -> Iterator[CinderLists]:
    made = lists_of(world)
    yield made
    made.close()


def lists_of(world: World) -> CinderLists:
    """As the world's own client: the same address and user."""
    settings: CinderSettings = world.port._settings  # type: ignore[attr-defined]
    retry = world.time.retry() if isinstance(world, SimulatedWorld) else None
    return CinderLists(settings, retry=retry)


def walked(page: Paged, limit: int) -> list[Any]:
    rows: list[Any] = []
    while found := page([row.id for row in rows[-5:]], limit):
        rows += found
    return rows


def in_another_project(world: World) -> str:
    wanted = {"size_gb": 1, "volume_type": world.kind, "project_id": world.other_project}
    volume_id = world.port.volume_create(wanted, new_uuid())
    world.clean_later(volume_id)
    worlds.until_available(world.port, volume_id)
    return volume_id


def test_pages_of_attachments_are_all_there_are_in_the_order_of_ids(
    world: World, lists: CinderLists
) -> None:
    volumes = [*(world.new_volume() for _ in range(4)), in_another_project(world)]
    made = {world.port.attachment_create(volume, new_uuid()).id: volume for volume in volumes}
    found = walked(lists.attachments, 2)
    assert {row.id: row.volume_id for row in found}.items() >= made.items()
    assert all(one.id < other.id for one, other in pairwise(found))


def test_a_listed_attachment_tells_its_status_and_not_where_it_is(
    world: World, lists: CinderLists
) -> None:
    volume, server = world.new_volume(), new_uuid()
    row = attached(world, volume, server)
    listed = next(each for each in walked(lists.attachments, 50) if each.id == row.id)
    assert listed == ListedAttachment(
        id=row.id, volume_id=volume, server_id=server, status="attached"
    )


def test_an_attachment_asked_for_tells_its_mode(world: World, lists: CinderLists) -> None:
    row = world.port.attachment_create(world.new_volume(), new_uuid(), mode="ro")
    world.port.attachment_update(row.id, connector(mode="ro"))
    assert lists.attachment(row.id).mode == "ro"


def test_volumes_tell_who_has_them_in_use_where(world: World, lists: CinderLists) -> None:
    used, free, server = world.new_volume(), world.new_volume(), new_uuid()
    row = attached(world, used, server, "compute-b")
    found = {each.id: each for each in walked(lists.volumes, 2)}
    assert found[used].attached == (
        ListedAttachment(
            id=row.id, volume_id=used, server_id=server, status="attached", host="compute-b"
        ),
    )
    assert found[used] == lists.volume(used)
    assert (found[used].status, found[free].status) == ("in-use", "available")
    assert found[free].attached == ()


def test_what_is_reserved_is_a_volume_s_attachment_and_not_in_use(
    world: World, lists: CinderLists
) -> None:
    volume = world.new_volume()
    row = world.port.attachment_create(volume, new_uuid())
    assert lists.volume(volume).attached == ()
    assert [each.id for each in lists.attachments_of(volume)] == [row.id]


def test_a_volume_that_we_made_carries_our_mark(world: World, lists: CinderLists) -> None:
    key = new_uuid()
    wanted = {"size_gb": 1, "volume_type": world.kind, "project_id": world.project}
    volume_id = world.port.volume_create(wanted, key)
    world.clean_later(volume_id)
    worlds.until_available(world.port, volume_id)
    assert lists.volume(volume_id).made_for == key
    assert lists.volume(world.new_volume()).made_for is None


def test_a_listed_volume_tells_its_project_and_whether_several_may_have_it(
    world: World, lists: CinderLists
) -> None:
    mine, others = lists.volume(world.new_volume()), lists.volume(in_another_project(world))
    assert (mine.multiattach, mine.project_id) == (False, world.project)
    assert others.project_id == world.other_project


def test_a_volume_tells_another_last_change_when_its_status_has_changed_and_only_then(
    world: World, lists: CinderLists
) -> None:
    volume = world.new_volume()
    before = lists.volume(volume).updated_at
    assert lists.volume(volume).updated_at == before
    world.port.attachment_create(volume, new_uuid())
    assert lists.volume(volume).updated_at != before


def test_what_is_not_there_is_not_found(lists: CinderLists) -> None:
    assert refusal(lambda: lists.attachment(new_uuid())).code == "not_found"
    assert refusal(lambda: lists.volume(new_uuid())).code == "not_found"


@pytest.mark.parametrize("left", [0, 1])
def test_a_walk_goes_on_behind_rows_that_were_deleted_meanwhile(
    world: World, lists: CinderLists, left: int
) -> None:
    volumes = [world.new_volume() for _ in range(5)]
    for volume in volumes:
        world.port.attachment_create(volume, new_uuid())
    every = [row.id for row in walked(lists.attachments, 50)]
    seen, rest = every[:-2], every[-2:]
    mine = {row.id for volume in volumes for row in lists.attachments_of(volume)}
    for id_ in [each for each in seen[left:] if each in mine]:
        world.port.attachment_delete(id_)
    assert [row.id for row in lists.attachments(seen[-3:], 1)] == rest[:1]


def test_who_is_no_administrator_gets_an_empty_list_and_no_refusal(
    simulated: SimulatedWorld,
) -> None:
    world, lists = simulated, lists_of(simulated)
    volume = in_another_project(world)
    row = world.port.attachment_create(volume, new_uuid())
    assert [each.id for each in lists.attachments([], 10)] == [row.id]
    simulated.model.without_admin_role.add("attachment-ledger")
    assert lists.attachments([], 10) == []
    assert lists.volumes([], 10) == []
    assert refusal(lambda: lists.volume(volume)).code == "not_found"
    lists.close()


def test_a_cut_page_is_no_end(simulated: SimulatedWorld) -> None:
    lists = lists_of(simulated)
    made = sorted(simulated.new_volume() for _ in range(9))
    simulated.faults.replace([{"call": "volume_list", "do": "cut", "count": 2}])
    assert [row.id for row in walked(lists.volumes, 4)] == made
    lists.close()


def test_a_list_in_another_order_is_refused(
    simulated: SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = lists_of(simulated)
    for _ in range(3):
        simulated.new_volume()
    monkeypatch.setattr("host_agent.shared.cinder.lists._BY_ID", "id:desc")
    assert refusal(lambda: lists.volumes([], 10)).code == "list_not_in_order"
    lists.close()


def test_of_connection_information_nothing_is_kept() -> None:
    for kind in (ListedAttachment, ListedVolume):
        assert "connection_info" not in kind.__slots__
