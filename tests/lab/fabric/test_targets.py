"""Targets that answer late, or not at all, to the second hypervisor; the storage is the first's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.fabric.test_flows import BY_ID, kinds, stored
from tests.lab.fabric.world import (
    Server,
    connected,
    operations,
    settled,
    vm,
    volumes,
    wait_until,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]
NewServer = Callable[[int], Server]

PATTERN = 11
#: What says, in the second, that the kernel has no path any more.
NO_PATH = {
    "lio": "multipath -ll | grep -c failed | grep -q 2",
    "nvmet": "! grep -q live /sys/class/nvme/nvme*/state",
}


@contextlib.contextmanager
def network(is_: str) -> Iterator[None]:
    """What netem makes of all that the second sends to storage; it knows the first's address."""
    neighbour = "ip neighbour replace 10.90.1.1 lladdr 52:54:00:91:00:01 dev eth1 nud permanent"
    vm(f"{neighbour}; tc qdisc replace dev eth1 root netem {is_}", on=2)
    try:
        yield
    finally:
        vm("tc qdisc del dev eth1 root", on=2)


@contextlib.contextmanager
def stands(volume: str) -> Iterator[None]:
    """The target answers to everything but reads and writes of this volume, which wait."""
    name = f"fab-volume--{volume.replace('-', '--')}"
    vm(f"dmsetup suspend --noflush --nolockfs {name}")
    try:
        yield
    finally:
        vm(f"dmsetup resume {name}")


def step() -> Any:
    """Where the only operation is."""
    [operation] = operations()
    return operation["at"]


def assert_released(volume: str) -> None:
    settled()
    assert volumes()[volume] == "available"
    wait_until(lambda: not connected(), "all connections to end")


@kinds
def test_a_target_that_answers_late_is_waited_for(
    kind: str, new_server: NewServer, new_volume: Make
) -> None:
    server, volume = new_server(2), new_volume(kind)
    server.act("os-start")
    server.wait_status("ACTIVE")
    with network("delay 700ms"):
        server.ask_attach(volume)
        settled()
        assert server.attachments() == [volume]
        assert server.sources()[volume].startswith(BY_ID[kind]), "by both of its paths"
        server.write(volume, PATTERN)
        assert server.reads(volume, PATTERN)
        server.ask_detach(volume)
        assert_released(volume)


def test_a_target_that_does_not_answer_is_asked_again(
    new_server: NewServer, new_volume: Make
) -> None:
    """An attempt is all that os-brick tries: three times two logins of 30 s by each portal."""
    server, volume = new_server(2), new_volume("lio")
    with network("loss 100%"):
        server.ask_attach(volume)
        wait_until(lambda: step()["error"], "an attempt to fail")
        assert step()["verb"] == "volume_connect"
    settled()
    assert server.attachments() == [volume]
    assert volumes()[volume] == "in-use"
    server.ask_detach(volume)
    assert_released(volume)


@kinds
def test_a_volume_that_hangs_is_released_once_it_answers(
    kind: str, new_server: NewServer, new_volume: Make
) -> None:
    """The kernel gives its paths up; what QEMU has to write waits, and with it the detach."""
    server, volume = new_server(2), new_volume(kind)
    server.act("os-start")
    server.wait_status("ACTIVE")
    server.ask_attach(volume)
    settled()
    server.write(volume, PATTERN)
    with stands(volume):
        server.ask_detach(volume)
        wait_until(lambda: vm(f"{NO_PATH[kind]} && echo yes || true", on=2), "the kernel to see it")
        assert step()["verb"] == "disk_unplug"
    assert_released(volume)
    assert server.attachments() == []
    assert stored(volume, PATTERN)
