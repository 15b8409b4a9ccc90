"""Attach and detach by the service, its agent, os-brick and Cinder's LVM driver, on real storage.

`lio` is iSCSI by two portals with multipath, each volume a target of its own; `nvmet` is NVMe over
TCP, all volumes of the host in one subsystem.  After each test nothing is connected (conftest.py).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator

import pytest

from tests.lab.fabric.world import (
    Server,
    backend,
    beginning,
    cinder,
    command,
    connected,
    dies,
    ledger,
    lv,
    script,
    sessions,
    settled,
    vm,
    volumes,
    wait_until,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]

BY_ID = {"lio": "/dev/disk/by-id/dm-uuid-mpath-", "nvmet": "/dev/disk/by-id/nvme-uuid."}
MIB = 1 << 20
SECOND = "10.90.0.2"
kinds = pytest.mark.parametrize("kind", list(BY_ID))


def attach(server: Server, volume: str) -> None:
    server.ask_attach(volume)
    wait_attached(server, volume)


def wait_attached(server: Server, volume: str) -> None:
    settled()
    assert volume in server.attachments()
    assert volumes()[volume] == "in-use"


def detach(server: Server, volume: str) -> None:
    server.ask_detach(volume)
    settled()
    assert volume not in server.attachments()


def wait_free(volume: str) -> None:
    assert volumes()[volume] == "available"
    wait_until(lambda: not connected(), "all connections to end")


def grow(server: Server, volume: str) -> None:
    before = server.size(volume)
    cinder("POST", f"/volumes/{volume}/action", {"os-extend": {"new_size": 2}})
    wait_until(lambda: server.size(volume) == before + 1024 * MIB, "the guest to see it grow")
    wait_until(lambda: volumes()[volume] == "in-use", "Cinder to be told")


def has_its_data(server: Server, volume: str, kind: str) -> None:
    """By the name that its guest has, live and defined, and by no kernel's number."""
    source = server.sources()[volume]
    assert source.startswith(BY_ID[kind])
    assert server.sources(inactive=True)[volume] == source
    assert beginning(source) == volume


def _written_past(volume: str, pattern: int) -> bool:
    """Whether the storage has 4 KiB of it where it is written, behind a head of LUKS or not."""
    read = f"dd if={lv(volume)} bs=1M count=32 iflag=direct status=none"
    found = vm(f"{read} | LC_ALL=C grep -c -m1 -a -P '\\x{pattern:02x}{{4096}}' || true")
    return found != "0"


def stored(volume: str, pattern: int) -> bool:
    """Whether the storage has what `Server.write` wrote."""
    found = vm(f"dd if={lv(volume)} bs=1M skip=1 count=1 iflag=direct status=none | sha256sum")
    return found.split()[0] == hashlib.sha256(bytes([pattern]) * MIB).hexdigest()


@kinds
def test_a_volume_is_attached_grown_written_and_detached(
    server: Server, kind: str, new_volume: Make
) -> None:
    volume = new_volume(kind)
    attach(server, volume)
    has_its_data(server, volume, kind)
    if kind == "lio":
        assert len(sessions()) == 2, "a session by each portal"
        assert len(vm("ls /sys/class/block/dm-*/slaves | grep sd").split()) == 2, "two paths"
    grow(server, volume)
    server.write(volume, 7)
    detach(server, volume)
    assert volume not in server.sources()
    wait_free(volume)
    assert stored(volume, 7)
    assert _written_past(volume, 7), "what is looked for in an encrypted one is found"


@pytest.mark.parametrize("kind", ["nvmet"])
def test_of_two_volumes_one_goes_and_the_other_stays(
    server: Server, kind: str, new_volume: Make
) -> None:
    """They share their subsystem, and the number of the first is used again at once."""
    one, other, third = (new_volume(kind) for _ in range(3))
    attach(server, one)
    attach(server, other)
    has_its_data(server, one, kind)
    detach(server, one)
    has_its_data(server, other, kind)
    attach(server, third)
    has_its_data(server, third, kind)
    has_its_data(server, other, kind)


@kinds
def test_two_servers_of_a_host_share_a_volume_and_one_lets_go(
    servers: list[Server], kind: str, new_volume: Make
) -> None:
    one, other = servers
    volume = new_volume(f"{kind}-multi")
    attach(one, volume)
    attach(other, volume)
    assert one.sources()[volume] == other.sources()[volume]
    one.write(volume, 3)
    assert other.reads(volume, 3)
    detach(one, volume)
    has_its_data(other, volume, kind)
    other.write(volume, 4)
    detach(other, volume)
    wait_free(volume)
    assert stored(volume, 4)


@kinds
def test_an_encrypted_volume_is_unreadable_past_the_guest(
    server: Server, kind: str, new_volume: Make
) -> None:
    volume = new_volume(f"{kind}-luks")
    attach(server, volume)
    server.write(volume, 5)
    assert "(" not in vm("dmsetup ls --target crypt"), "QEMU decrypts, not the host"
    detach(server, volume)
    wait_free(volume)
    assert vm(f"cryptsetup isLuks {lv(volume)} && echo yes") == "yes"
    assert not _written_past(volume, 5)
    attach(server, volume)
    assert server.reads(volume, 5)
    grow(server, volume)
    detach(server, volume)


def test_cinder_migrates_a_volume_in_use_to_another_storage(
    server: Server, new_volume: Make
) -> None:
    volume = new_volume("lio")
    attach(server, volume)
    server.write(volume, 6)
    retype = {"os-retype": {"new_type": "nvmet", "migration_policy": "on-demand"}}
    cinder("POST", f"/volumes/{volume}/action", retype)
    wait_until(
        lambda: backend(volume) == "nvmet" and volumes()[volume] == "in-use", "Cinder's migration"
    )
    settled()
    assert server.attachments() == [volume]
    assert server.sources()[volume].startswith(BY_ID["nvmet"])
    assert server.reads(volume, 6)
    detach(server, volume)
    wait_free(volume)


@pytest.mark.parametrize(("kind", "other"), [("lio", "nvmet"), ("nvmet", "lio")])
def test_a_user_swaps_a_volume_for_one_of_another_storage(
    server: Server, kind: str, other: str, new_volume: Make
) -> None:
    old, new = new_volume(kind), new_volume(other)
    attach(server, old)
    server.write(old, 8)
    command("attachment", "swap", server.id, old, new, "--wait")
    settled()
    assert server.attachments() == [new]
    assert volumes()[old] == "available"
    assert server.sources()[old].startswith(BY_ID[other])  # the guest knows its disk as before
    assert server.reads(old, 8)
    detach(server, new)
    wait_free(new)
    assert stored(new, 8)


@pytest.mark.parametrize(("kind", "when"), [("lio", "after login"), ("nvmet", "after connect")])
def test_the_agent_is_killed_in_an_attach(
    server: Server, kind: str, when: str, new_volume: Make
) -> None:
    volume = new_volume(kind)
    vm(f"echo {when} >/run/die")
    server.ask_attach(volume)
    dies()
    script("ledger.sh", "agent")
    wait_attached(server, volume)
    has_its_data(server, volume, kind)
    detach(server, volume)


@pytest.mark.parametrize(
    ("kind", "when"), [("lio", "after remove"), ("nvmet", "before disconnect")]
)
def test_the_agent_is_killed_in_a_detach(
    server: Server, kind: str, when: str, new_volume: Make
) -> None:
    volume = new_volume(kind)
    attach(server, volume)
    vm(f"echo {when} >/run/die")
    server.ask_detach(volume)
    dies()
    script("ledger.sh", "agent")
    settled()
    wait_free(volume)


def test_both_paths_are_lost_for_a_while_and_one_is_down_when_it_is_detached(
    server: Server, new_volume: Make
) -> None:
    """Its map queues for a while (LIO's entry in multipathd); with one path all is as before."""
    volume = new_volume("lio")
    attach(server, volume)
    vm("for a in 1 2; do ip address del 10.90.0.$a/32 dev lo; done")
    wait_until(lambda: vm("multipath -ll").count("failed") >= 2, "multipathd to see it")
    vm("for a in 1 2; do ip address replace 10.90.0.$a/32 dev lo; done")
    wait_until(lambda: vm("multipath -ll").count("active ready") == 2, "both paths to be back")
    has_its_data(server, volume, "lio")
    vm(f"ip address del {SECOND}/32 dev lo")
    wait_until(lambda: "failed" in vm("multipath -ll"), "multipathd to see it")
    server.write(volume, 1)
    detach(server, volume)
    wait_free(volume)
    assert stored(volume, 1)


def test_one_path_is_down_when_it_is_connected_and_the_other_is_down_afterwards(
    server: Server, new_volume: Make
) -> None:
    """It is one path's then, until it is connected anew: what goes on has both."""
    volume = new_volume("lio")
    vm(f"ip address del {SECOND}/32 dev lo")
    attach(server, volume)
    has_its_data(server, volume, "lio")
    assert len(sessions()) == 1
    vm(f"ip address replace {SECOND}/32 dev lo")
    command("attachment", "refresh", "--server", server.id, "--wait")
    settled()
    wait_until(lambda: vm("multipath -ll").count("active ready") == 2, "the second path")
    vm("ip address del 10.90.0.1/32 dev lo")
    wait_until(lambda: "failed" in vm("multipath -ll"), "multipathd to see it")
    server.write(volume, 2)
    vm("ip address replace 10.90.0.1/32 dev lo")
    wait_until(lambda: vm("multipath -ll").count("active ready") == 2, "both paths to be back")
    detach(server, volume)
    wait_free(volume)
    assert stored(volume, 2)


def test_use_multipath_is_changed_between_connect_and_disconnect(
    servers: list[Server], new_volume: Make
) -> None:
    """Each goes as it came, by its record; what another server has keeps both of its sessions."""
    one, other = servers
    by_both, by_one, stays = (new_volume("lio") for _ in range(3))
    attach(one, by_both)
    attach(other, stays)
    with one_path():
        attach(one, by_one)
        assert logged_in(by_both, by_one, stays) == [2, 1, 2]
        detach(one, by_both)
        assert logged_in(by_both, by_one, stays) == [0, 1, 2]
    detach(one, by_one)
    assert logged_in(by_both, by_one, stays) == [0, 0, 2]
    has_its_data(other, stays, "lio")
    detach(other, stays)
    wait_free(stays)


@contextlib.contextmanager
def one_path() -> Iterator[None]:
    """The agent is without `use_multipath` for a while."""
    restart_agent("--set", "brick.use_multipath=false")
    try:
        yield
    finally:
        restart_agent()


def restart_agent(*words: str) -> None:
    """With these words for its command line."""
    script("ledger.sh", "agent_off")
    script("ledger.sh", "agent", *words)
    wait_until(lambda: ledger("GET", "/v1/hosts")["hosts"][0]["alive"], "the agent to be back")


def logged_in(*volumes: str) -> list[int]:
    """How many sessions there are with the target of each."""
    found = sessions()
    return [sum(volume in target for target in found) for volume in volumes]


@kinds
def test_an_unused_volume_is_retyped_to_one_for_several_servers(
    servers: list[Server], kind: str, new_volume: Make
) -> None:
    volume = new_volume(kind)
    cinder("POST", f"/volumes/{volume}/action", {"os-retype": {"new_type": f"{kind}-multi"}})
    wait_until(lambda: volumes()[volume] == "available", "Cinder's retype")
    for server in servers:
        attach(server, volume)
    for server in servers:
        detach(server, volume)
    wait_free(volume)
