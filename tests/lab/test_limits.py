"""Disks with the limits of their volumes' type, which the real QEMU keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.cinder_ready import LIMITED
from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_until
from tests.lab.moving import THERE
from tests.lab.settings import SETTLE_S

pytestmark = pytest.mark.lab


def limits(guest: LabGuest, volume: str) -> dict[str, int]:
    """QEMU's own word (`virsh blkdeviotune`)."""
    target = guest.disk(volume)
    assert target is not None
    found = guest.domain.blockIoTune(target)
    return {name: limit for name, limit in found.items() if isinstance(limit, int) and limit}


def test_a_guest_has_the_limits_of_its_volumes_type_wherever_it_runs(
    lab: Lab, new_guest: Callable[..., LabGuest], new_volume: Callable[[str], str], backend: str
) -> None:
    """And those that it has got since, without what the administrator mistyped."""
    kind = f"{backend}-limited"
    volume, guest = new_volume(kind), new_guest("qos")
    lab.cloud.attach(guest.id, volume)
    wait_until(lambda: guest.disk(volume), "the disk to be plugged", SETTLE_S)
    assert limits(guest, volume) == {"total_iops_sec": 300}

    specs = ("--property", "total_iops_sec_per_gb=200", "--property", "read_bytes_sec=a lot")
    lab.cloud.admin("volume", "qos", "set", *specs, kind)
    lab.cloud.admin("server", "migrate", "--live-migration", "--host", THERE, guest.id)
    assert lab.ledger.wait_outcome("live_migrate", volume)["outcome"] == "completed"
    guest.moved_to(THERE)
    assert limits(guest, volume) == {"total_iops_sec": 200}

    former = f"total_iops_sec_per_gb={LIMITED['total_iops_sec_per_gb']}"
    lab.cloud.admin("volume", "qos", "set", "--property", former, kind)
    lab.ledger.command("attachment", "refresh", "--server", guest.id)
    assert lab.ledger.wait_outcome("refresh", volume)["outcome"] == "completed"
    assert limits(guest, volume) == {"total_iops_sec": 200}, "until its next start"
    lab.cloud.openstack("server", "reboot", "--hard", guest.id)
    assert lab.ledger.wait_outcome("reboot", volume)["outcome"] == "completed"
    assert limits(guest, volume) == {"total_iops_sec": 300}
    lab.cloud.admin("volume", "qos", "unset", "--property", "read_bytes_sec", kind)
    lab.cloud.detach(guest.id, volume)
