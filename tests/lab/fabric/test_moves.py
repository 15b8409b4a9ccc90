"""Guests that move between two hypervisors, with volumes on real iSCSI (two paths) and NVMe/TCP.

The guest boots from its first volume and writes to it all the time (writer.S); what is on the other
one was written before.  The storage is the first hypervisor's, so the second is the one that hangs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.lab.fabric.world import (
    HOSTS,
    Server,
    beginning,
    cinder,
    command,
    connected,
    dies,
    guests,
    host_name,
    ledger,
    let_write,
    missing,
    register_old,
    script,
    sessions,
    settled,
    vm,
    volumes,
    wait_until,
    wait_written,
    written,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]
NewServer = Callable[[int], Server]

PATTERN = 9


class Moving:
    """A guest with a volume of each storage, to the first of which it writes."""

    def __init__(self, server: Server, volumes: list[str]) -> None:
        self.server, self.volumes = server, volumes
        self.boots, self.other = volumes
        let_write(self.boots)
        for volume in volumes:
            server.ask_attach(volume)
            settled()
        server.act("os-start")
        server.wait_status("ACTIVE")
        wait_written(self.boots)
        server.write(self.other, PATTERN)

    def assert_on(self, number: int) -> None:
        """There and nowhere else: the guest, its volumes, all that is connected; and it writes."""
        settled()
        assert self.server.host == number
        self.server.wait_status("ACTIVE")
        assert self.server.name in guests(number, running=True)
        assert self.server.name not in guests(3 - number)
        assert connected(3 - number) == ""
        for volume in self.volumes:
            assert attached_hosts(volume) == [host_name(number)]
        assert self.server.sources() == self.server.sources(inactive=True)
        wait_written(self.boots)
        assert self.server.reads(self.other, PATTERN)

    def assert_whole(self) -> None:
        """Deleted, it has let go of all, and all that it wrote is there."""
        ledger("DELETE", f"/v2.1/servers/{self.server.id}")
        settled()
        for volume in self.volumes:
            assert volumes()[volume] == "available"
        assert connected() == ""
        assert missing(self.boots) == ""


def attached_hosts(volume: str) -> list[str]:
    found = cinder("GET", f"/attachments/detail?volume_id={volume}")["attachments"]
    shown = cinder("GET", f"/volumes/{volume}")["volume"]["attachments"]
    assert len(found) == len(shown)
    assert {each["status"] for each in found} <= {"attached"}
    return sorted(each["host_name"] for each in shown)


@pytest.fixture
def new_moving(new_server: NewServer, new_volume: Make) -> Callable[..., Moving]:
    def make(on: int) -> Moving:
        return Moving(new_server(on), [new_volume(kind) for kind in ("lio", "nvmet")])

    return make


@contextlib.contextmanager
def hung() -> Iterator[None]:
    """The second hypervisor does not answer, and is fenced; it goes on afterwards."""
    script("vm.sh", "freeze", on=2)
    evidence = ("--reason", "does not answer", "--evidence", "its guest is paused")
    command("host", "fence", host_name(2), *evidence, "--force")  # it answered just now
    try:
        yield
    finally:
        script("vm.sh", "thaw", on=2)
        command("host", "unfence", host_name(2), "--reason", "it is back")


def test_a_hypervisor_hangs_and_comes_back_to_its_other_servers(
    new_moving: Callable[..., Moving], new_server: NewServer, new_volume: Make
) -> None:
    """It has guest, sessions and maps of its dead life; what stays is not touched."""
    moving, stays = new_moving(2), new_server(2)
    kept = {kind: new_volume(kind) for kind in ("lio", "nvmet")}
    for volume in kept.values():
        stays.ask_attach(volume)
        settled()
    vm(f"virsh -q suspend {moving.server.name}", on=2)  # so the fence is true: it writes no more
    with hung():
        last = written(moving.boots)
        moving.server.act("evacuate", {"host": host_name(1)})
        settled()
        assert moving.server.host == 1
        moving.server.wait_status("SHUTOFF")  # as Nova's, since 2.95
        moving.server.act("os-start")
        moving.server.wait_status("ACTIVE")
        wait_until(lambda: written(moving.boots) > last, "it to write on from there")
    wait_until(lambda: moving.server.name not in guests(2), "the old host to clear up")
    wait_until(lambda: len(records(2)) == len(kept), "what is of its dead life to be released")
    assert moving.server.reads(moving.other, PATTERN)
    assert_kept(stays, kept)
    for server in (stays, moving.server):
        ledger("DELETE", f"/v2.1/servers/{server.id}")
        settled()
    assert connected() == ""
    assert missing(moving.boots) == ""


def records(on: int) -> list[str]:
    return vm("find /var/lib/agent -name '*.json'", on=on).split()


def assert_kept(server: Server, kept: dict[str, str]) -> None:
    """The server that stayed has its volumes there, and nothing else is connected."""
    for volume in kept.values():
        assert attached_hosts(volume) == [host_name(2)]
        assert beginning(server.sources()[volume], on=2) == volume
    wait_until(lambda: len(set(sessions(2))) == 1, "only its own target to be logged in")
    assert kept["lio"] in sessions(2)[0]


def test_a_server_that_is_built_boots_from_what_takes_the_place_of_its_root(
    new_bootable: Callable[[], str],
) -> None:
    """Its root goes and another comes while it is stopped (S2); what was made for it stays."""
    root, later = new_bootable(), new_bootable()
    server = built(2, root)
    [made] = set(server.attachments()) - {root}
    wait_written(root)
    server.write(made, PATTERN)
    server.act("os-stop")
    server.wait_status("SHUTOFF")
    command("server", "remove", "volume", server.id, root, "--wait")
    assert volumes()[root] == "available"
    assert sessions(2) == []
    assert attached_hosts(made) == [host_name(2)]
    last = written(root)
    command("server", "add", "volume", server.id, later, "--root", "--wait")
    server.act("os-start")
    server.wait_status("ACTIVE")
    wait_written(later)
    assert server.sources() == server.sources(inactive=True)
    assert server.reads(made, PATTERN)
    ledger("DELETE", f"/v2.1/servers/{server.id}")
    settled()
    assert [volumes()[each] for each in (root, later)] == ["available"] * 2
    wait_until(lambda: made not in volumes(), "what was made for it to be deleted")
    assert connected() == ""
    assert written(root) == last > 0, "nobody has it any more"
    assert (missing(root), missing(later)) == ("", "")


@pytest.fixture
def new_bootable(new_volume: Make) -> Callable[[], str]:
    """Makes volumes on iSCSI that a guest boots from, and writes to."""

    def make() -> str:
        volume = new_volume("lio")
        let_write(volume)
        cinder("POST", f"/volumes/{volume}/action", {"os-set_bootable": {"bootable": True}})
        return volume

    return make


def built(on: int, root: str) -> Server:
    """A server of that root, and of a volume that is made for it, on NVMe."""
    made = {"create": {"size_gb": 1, "volume_type": "nvmet"}, "delete_on_termination": True}
    disks = [{"volume_id": root, "boot_index": 0}, made]
    wanted = {"name": "built", "memory_mb": 64, "host": host_name(on), "disks": disks}
    id_ = ledger("POST", "/v1/servers", wanted)["server_id"]
    server = Server(f"instance-{id_[:8]}", id_)
    settled()
    server.wait_status("ACTIVE")
    return server


def test_a_hypervisor_loses_power_and_its_server_is_started_again(
    new_moving: Callable[..., Moving],
) -> None:
    """Nobody fences it, and nothing that it had connected is there when it is back."""
    moving = new_moving(2)
    script("vm.sh", "off", on=2)
    last = written(moving.boots)
    script("vm.sh", "up", on=2)
    assert connected(2).count("json") == len(moving.volumes), "records alone"
    script("ledger.sh", "agent", on=2)
    moving.server.wait_status("SHUTOFF")
    assert set(moving.server.attachments()) == set(moving.volumes)
    moving.server.act("os-start")
    moving.assert_on(2)
    assert written(moving.boots) > last
    moving.assert_whole()


@pytest.mark.parametrize("kind", ["lio", "nvmet"])
def test_two_hypervisors_have_one_volume_and_one_lets_go(
    kind: str, new_server: NewServer, new_volume: Make
) -> None:
    volume = new_volume(f"{kind}-multi")
    here, there = (new_server(number) for number in HOSTS)
    for server in (here, there):
        server.ask_attach(volume)
        settled()
        server.act("os-start")
        server.wait_status("ACTIVE")
    assert attached_hosts(volume) == [host_name(1), host_name(2)]
    here.write(volume, 3)
    assert there.reads(volume, 3)
    there.write(volume, 4)
    assert here.reads(volume, 4)
    here.ask_detach(volume)
    settled()
    assert connected(1) == ""
    assert attached_hosts(volume) == [host_name(2)]
    assert beginning(there.sources()[volume], on=2) == volume
    there.write(volume, 5)
    there.ask_detach(volume)
    settled()
    assert volumes()[volume] == "available"
    assert connected() == ""


@contextlib.contextmanager
def killed(when: str, *, on: int) -> Iterator[None]:
    """The agent there dies at that point of what is begun here, and is started again."""
    vm(f"echo {when} >/run/die", on=on)
    yield
    dies(on)
    script("ledger.sh", "agent", on=on)


def test_a_guest_is_shelved_and_comes_back_on_the_other_hypervisor_though_agents_die(
    new_moving: Callable[..., Moving],
) -> None:
    moving = new_moving(1)
    with killed("after remove", on=1):
        moving.server.act("shelve")
    settled()
    assert moving.server.status == "SHELVED_OFFLOADED"
    assert connected() == ""
    assert [volumes()[each] for each in moving.volumes] == ["reserved"] * 2
    with killed("after login", on=2):
        moving.server.act("unshelve", {"host": host_name(2)})
    moving.assert_on(2)
    moving.assert_whole()


def test_a_guest_is_moved_live_and_never_stops_writing(new_moving: Callable[..., Moving]) -> None:
    moving = new_moving(1)
    moving.server.act("os-migrateLive", {"host": host_name(2), "block_migration": "auto"})
    settled()
    moving.assert_on(2)
    moving.assert_whole()


@contextlib.contextmanager
def old_agent() -> Iterator[None]:
    """The second host's is one of before Cinder's attachments, for a while."""
    script("ledger.sh", "agent_off", on=2)
    register_old(2)
    yield
    script("ledger.sh", "agent", on=2)


def is_old(volume: str) -> bool:
    """Cinder knows the server, and not how its host is connected."""
    [found] = cinder("GET", f"/attachments/detail?volume_id={volume}")["attachments"]
    assert found["status"] == "attached"
    return not found["connection_info"]


def test_volumes_of_the_old_calls_are_converted_and_detached(
    new_server: NewServer, new_volume: Make
) -> None:
    server, both = new_server(1), [new_volume(kind) for kind in ("lio", "nvmet")]
    server.act("os-start")
    server.wait_status("ACTIVE")
    with old_agent():
        for volume in both:
            server.ask_attach(volume)
            settled()
            assert is_old(volume)
            server.write(volume, 6)
    command("attachment", "convert", server.id)
    settled()
    for volume in both:
        assert not is_old(volume)
        assert server.reads(volume, 6)
        server.ask_detach(volume)
        settled()
        assert volumes()[volume] == "available"
    assert connected() == ""


def test_a_guest_is_moved_cold(new_moving: Callable[..., Moving]) -> None:
    moving = new_moving(1)
    moving.server.act("migrate", {"host": host_name(2)})
    settled()
    assert moving.server.status == "VERIFY_RESIZE"
    assert moving.server.name in guests(2, running=True)
    wait_written(moving.boots)
    moving.server.act("confirmResize")
    moving.assert_on(2)
    moving.assert_whole()
