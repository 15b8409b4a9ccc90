"""Guests that move between two hypervisors, with volumes on real iSCSI (two paths) and NVMe/TCP.

The guest boots from its first volume and writes to it all the time (writer.S); what is on the other
one was written before.  The storage is the first hypervisor's, so the second is the one that hangs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.lab.fabric.world import (
    Server,
    beginning,
    cinder,
    command,
    connected,
    guests,
    host_name,
    ledger,
    let_write,
    missing,
    script,
    sessions,
    settled,
    vm,
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
