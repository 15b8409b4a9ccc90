"""Connections fetched anew from Cinder, whose storage may have moved."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from tests.lab.control import UPDATE, Lab
from tests.lab.moving import HERE, Moving
from tests.lab.settings import WHEN

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("when", WHEN)
def test_a_guest_writes_on_while_its_connections_are_fetched_and_the_agent_dies(
    when: str, lab: Lab, moving: Moving
) -> None:
    with lab.dying(lab.agent, UPDATE, when):
        lab.ledger.command("attachment", "refresh", "--server", moving.guest.id)
    assert moving.outcome("refresh") == "completed"
    moving.assert_on(HERE)
    moving.assert_writes_on()


def refresh_host(lab: Lab) -> None:
    """All its servers are refreshed; what tests that failed have left there may refuse."""
    with contextlib.suppress(subprocess.CalledProcessError):
        lab.ledger.command("attachment", "refresh", "--host", HERE)


def move_exports(moving: Moving, address: str) -> None:
    for volume in moving.volumes:
        moving.lab.cloud.move_export(volume, address)


def assert_at(moving: Moving, address: str, was: list[str]) -> None:
    """That is what Cinder says, and the guest is defined so: by other names the same files."""
    for volume, before in zip(moving.volumes, was, strict=True):
        [attachment] = moving.lab.cloud.attachments(volume)
        assert attachment.connection_info["export"].startswith(f"{address}:")
        now = moving.guest.source(volume, persistent=True)
        assert now
        assert now != before
        assert Path(now).samefile(before)


def sources(moving: Moving, *, persistent: bool) -> list[str]:
    return [str(moving.guest.source(volume, persistent=persistent)) for volume in moving.volumes]


# Ceph's monitors have their addresses for good.
@pytest.mark.parametrize("backend", ["nfs"], indirect=True)
def test_a_guest_starts_from_where_its_volumes_are_now(lab: Lab, moving: Moving) -> None:
    """Refreshed with its host: running, it keeps what it has open, and somebody is told."""
    guest, was = moving.guest, sources(moving, persistent=False)
    move_exports(moving, "127.0.0.2")
    refresh_host(lab)
    operation = lab.ledger.wait_outcome("refresh", moving.volumes[0])
    assert (operation["state"], operation["error"]["code"]) == ("parked", "refresh_needs_stop")
    assert sources(moving, persistent=False) == sources(moving, persistent=True) == was
    moving.assert_on(HERE)
    last = moving.stop_writing()

    later = ("--reason", "it is rebooted instead")
    lab.ledger.command("operation", "give-up", operation["operation_id"], *later)
    lab.cloud.openstack("server", "reboot", "--hard", guest.id)
    assert moving.outcome("reboot") == "completed"
    guest.wait_booted(2)
    moving.assert_on(HERE)
    assert_at(moving, "127.0.0.2", was)
    was = sources(moving, persistent=True)
    assert sources(moving, persistent=False) == was

    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    move_exports(moving, "127.0.0.3")
    refresh_host(lab)
    assert moving.outcome("refresh") == "completed"
    assert_at(moving, "127.0.0.3", was)
    moving.detach()
    moving.assert_kept(last)
