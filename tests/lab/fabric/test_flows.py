"""Attach and detach by the service, its agent, os-brick and Cinder's LVM driver, on real storage.

`lio` is iSCSI by two portals with multipath, each volume a target of its own; `nvmet` is NVMe over
TCP, all volumes of the host in one subsystem.  After each test nothing is connected (conftest.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.fabric.world import (
    ask_attach,
    ask_detach,
    attachments,
    beginning,
    connected,
    operations,
    script,
    sessions,
    sources,
    vm,
    volumes,
    wait_until,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]

BY_ID = {"lio": "/dev/disk/by-id/dm-uuid-mpath-", "nvmet": "/dev/disk/by-id/nvme-uuid."}
SECOND = "10.90.0.2"
kinds = pytest.mark.parametrize("kind", list(BY_ID))


def settled() -> None:
    """Cinder is asked once, afterwards: under emulation it answers in seconds."""
    wait_until(lambda: not operations(), "the operations to end")


def attach(volume: str) -> None:
    ask_attach(volume)
    wait_attached(volume)


def wait_attached(volume: str) -> None:
    settled()
    assert volume in attachments()
    assert volumes()[volume] == "in-use"


def detach(volume: str) -> None:
    ask_detach(volume)
    wait_detached(volume)


def wait_detached(volume: str) -> None:
    settled()
    assert volume not in attachments()
    assert volumes()[volume] == "available"


def has_its_data(volume: str, kind: str) -> None:
    """By the name that its guest has, live and defined, and by no kernel's number."""
    source = sources()[volume]
    assert source.startswith(BY_ID[kind])
    assert sources(inactive=True)[volume] == source
    assert beginning(source) == volume


@kinds
def test_a_volume_is_attached_and_detached(kind: str, new_volume: Make) -> None:
    volume = new_volume(kind)
    attach(volume)
    has_its_data(volume, kind)
    if kind == "lio":
        assert len(sessions()) == 2, "a session by each portal"
        assert len(vm("ls /sys/class/block/dm-*/slaves | grep sd").split()) == 2, "two paths"
    detach(volume)
    assert volume not in sources()
    wait_until(lambda: not connected(), "all connections to end")


@pytest.mark.parametrize("kind", ["nvmet"])
def test_of_two_volumes_one_goes_and_the_other_stays(kind: str, new_volume: Make) -> None:
    """They share their subsystem, and the number of the first is used again at once."""
    one, other, third = (new_volume(kind) for _ in range(3))
    attach(one)
    attach(other)
    has_its_data(one, kind)
    detach(one)
    has_its_data(other, kind)
    attach(third)
    has_its_data(third, kind)
    has_its_data(other, kind)


@pytest.mark.parametrize(("kind", "when"), [("lio", "after login")])
def test_the_agent_is_killed_in_an_attach(kind: str, when: str, new_volume: Make) -> None:
    volume = new_volume(kind)
    vm(f"echo {when} >/run/die")
    ask_attach(volume)
    dies()
    script("ledger.sh", "agent")
    wait_attached(volume)
    has_its_data(volume, kind)
    detach(volume)


@pytest.mark.parametrize(("kind", "when"), [("lio", "after remove")])
def test_the_agent_is_killed_in_a_detach(kind: str, when: str, new_volume: Make) -> None:
    volume = new_volume(kind)
    attach(volume)
    vm(f"echo {when} >/run/die")
    ask_detach(volume)
    dies()
    script("ledger.sh", "agent")
    wait_detached(volume)
    wait_until(lambda: not connected(), "all connections to end")


def dies() -> None:
    running = "pgrep -F /var/lib/agent/locks/agent.lock || true"
    wait_until(lambda: not vm(f"ls /run/die 2>/dev/null; {running}"), "the agent to die")


def test_a_path_is_lost_in_use_and_still_down_when_it_is_detached(new_volume: Make) -> None:
    volume = new_volume("lio")
    attach(volume)
    vm(f"ip address del {SECOND}/32 dev lo")
    wait_until(lambda: "failed" in vm("multipath -ll"), "multipathd to see it")
    has_its_data(volume, "lio")
    detach(volume)
    wait_until(lambda: not connected(), "all connections to end, that of the lost path too")
