"""Bugs others had with volumes and targets that servers share, under their numbers (Launchpad)."""

from __future__ import annotations

import pytest

from aggregates.attachment import Attachment
from aggregates.operation import Outcome
from host_agent.shared.contract.messages import ErrorKind
from tests.doubles.host_checks import connected_paths
from tests.regressions.worlds import (
    NEIGHBOUR,
    Street,
    Watched,
    attached,
    broken_on,
    migrate,
    rows,
    sources,
    status,
)
from tests.world import HOST, OTHER, SERVER, World, events


def shared(host: str = HOST, driver: str = "iscsi") -> Street:
    """One multi-attach volume, attached to both servers; the neighbour is on `host`."""
    world = Street(multiattach=True, driver=driver)
    world.add_neighbour(host)
    world.done(world.attach())
    with world.meant(NEIGHBOUR):
        world.done(world.attach())
    return world


def shareable(world: World, host: str, server_id: str = SERVER) -> bool:
    guest = world.hosts[host].read()["guests"][server_id]
    return all("<shareable" in guest[copy] for copy in ("live", "persistent") if guest[copy])


@pytest.mark.parametrize("leaving", [SERVER, NEIGHBOUR])
def test_lp1839384_the_connection_that_another_server_uses_is_kept(leaving: str) -> None:
    world = shared()
    staying = NEIGHBOUR if leaving == SERVER else SERVER
    disconnect = Watched(world, HOST, "brick.disconnect")
    with world.meant(leaving):
        world.done(world.detach())
    assert disconnect.seen == []
    assert sources(world, HOST, leaving) == {}
    assert len(sources(world, HOST, staying)) == 1
    assert set(sources(world, HOST, staying).values()) == connected_paths(world.host)
    assert [row.instance for row in rows(world)] == [staying]
    assert status(world) == "in-use"
    with world.meant(staying):
        world.done(world.detach())
    assert len(disconnect.seen) == 1
    assert connected_paths(world.host) == set()
    assert status(world) == "available"
    assert [e.shared for e in events(world, Attachment.Disconnected)] == [True, False]


def test_lp1839384_servers_on_two_hosts_have_connections_of_their_own() -> None:
    world = shared(OTHER)
    world.done(world.detach())
    assert connected_paths(world.hosts[HOST]) == set()
    assert len(connected_paths(world.hosts[OTHER])) == 1
    assert [row.host for row in rows(world)] == [OTHER]


@pytest.mark.parametrize("flow", ["live_migrate", "shelve", "delete"])
def test_lp1839384_a_server_that_leaves_its_host_leaves_the_others_connection(flow: str) -> None:
    world = shared()
    if flow == "delete":
        world.done(world.delete())
    else:
        where = {"destination": OTHER} if flow == "live_migrate" else {}
        world.done(world.act(flow, **where))
    assert len(connected_paths(world.hosts[HOST])) == 1
    assert len(sources(world, HOST, NEIGHBOUR)) == 1
    assert NEIGHBOUR in {row.instance for row in rows(world) if row.host == HOST}


def test_lp1839384_a_server_that_moves_to_where_the_volume_is_already_fails_without_harm() -> None:
    """Undoing the move must not take the connection from the server that was there before."""
    world = shared(OTHER)
    broken_on(world, HOST, "guests.migrate", ErrorKind.FINAL)
    disconnect = Watched(world, OTHER, "brick.disconnect")
    assert world.run(migrate(world)).outcome is Outcome.FAILED
    assert disconnect.seen == []
    assert len(connected_paths(world.hosts[OTHER])) == 1
    assert len(sources(world, OTHER, NEIGHBOUR)) == 1
    assert sorted(row.host or "" for row in rows(world)) == [HOST, OTHER]


def test_lp1888022_a_shared_mount_is_undone_once_by_the_last_who_uses_it() -> None:
    """There is one count of users, the log; the host keeps none beside it."""
    world = shared(driver="local")
    disconnect = Watched(world, HOST, "brick.disconnect")
    world.done(world.detach())
    with world.meant(NEIGHBOUR):
        world.done(world.detach())
    assert len(disconnect.seen) == 1
    assert connected_paths(world.host) == set()


@pytest.mark.parametrize("flow", ["resize", "live_migrate", "reboot"])
def test_lp1757190_a_shareable_disk_stays_shareable(flow: str) -> None:
    world = attached(multiattach=True)
    assert shareable(world, HOST)
    moves = flow != "reboot"
    world.done(world.act(flow, **({"destination": OTHER} if moves else {})))
    assert shareable(world, OTHER if moves else HOST)
    assert all(m.multiattach for m in world.mappings())


def test_lp1757190_a_shareable_disk_stays_shareable_after_shelving() -> None:
    world = attached(multiattach=True)
    world.done(world.act("shelve")).done(world.act("unshelve", destination=OTHER))
    assert shareable(world, OTHER)


def test_os_brick_1587256_a_volume_that_leaves_takes_no_other_with_it() -> None:
    world = attached(volumes=2)
    stays = sources(world, HOST)[world.volumes[1]]
    world.done(world.detach(world.volumes[0]))
    assert connected_paths(world.host) == {stays}
    assert sources(world, HOST) == {world.volumes[1]: stays}
    assert [row.status for row in rows(world, 1)] == ["attached"]
    assert world.wrong() == []
