"""Targets that answer late, or not at all, to the second hypervisor; the storage is the first's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.fabric.test_flows import BY_ID, kinds, stored
from tests.lab.fabric.world import (
    OUTSIDE_S,
    Server,
    beginning,
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
#: What says, in the second, that it is logged in to a target.
LIVE = {
    "lio": "grep -qs LOGGED_IN /sys/class/iscsi_session/*/state",
    "nvmet": "grep -qs live /sys/class/nvme/nvme*/state",
}
#: And that the kernel has no path any more.
NO_PATH = {
    "lio": "multipath -ll | grep -c failed | grep -q 2",
    "nvmet": f"! {LIVE['nvmet']}",
}


def sees(what: str) -> bool:
    """Whether the second does."""
    return vm(f"{what} && echo yes || true", on=2) == "yes"


def netem(is_: str) -> None:
    """What is made of all that the second sends to storage; it knows the first's address."""
    neighbour = "ip neighbour replace 10.90.1.1 lladdr 52:54:00:91:00:01 dev eth1 nud permanent"
    vm(f"{neighbour}; tc qdisc replace dev eth1 root netem {is_}", on=2)


@contextlib.contextmanager
def network(is_: str) -> Iterator[None]:
    netem(is_)
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
def test_a_target_that_falls_silent_in_the_middle_of_a_connect(
    kind: str, new_server: NewServer, new_volume: Make
) -> None:
    """Once logged in to; before that each answer is late, so that there is a middle to see."""
    server, volume = new_server(2), new_volume(kind)
    with network("delay 700ms"):
        server.ask_attach(volume)
        wait_until(lambda: sees(LIVE[kind]), "the login", OUTSIDE_S)
        netem("loss 100%")
        assert step()["verb"] == "volume_connect"
        wait_until(lambda: not sees(LIVE[kind]), "the kernel to see it")
    settled()
    assert server.attachments() == [volume]
    assert volumes()[volume] == "in-use"
    source = server.sources()[volume]
    assert source.startswith(BY_ID[kind])
    assert beginning(source, on=2) == volume
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
        wait_until(lambda: sees(NO_PATH[kind]), "the kernel to see it")
        assert step()["verb"] == "disk_unplug"
    assert_released(volume)
    assert server.attachments() == []
    assert stored(volume, PATTERN)
