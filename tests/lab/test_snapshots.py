"""Snapshots of a volume in use, on a share: real Cinder calls, a guest that writes takes part.

Of the lab's backends only NFS has Cinder ask for that.  What is on the files in the end is read
past guest and Cinder, with QEMU's own tools.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cinderclient import exceptions as cinder_errors

from tests.lab.control import SNAPSHOT_SHOW, Lab
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.settings import LAB_DIR, SETTLE_S
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab

#: Cinder looks every few seconds, then less often.
HEARD_S = 2 * SETTLE_S


def take(lab: Lab, volume: str) -> str:
    """`openstack volume snapshot create --force`; its id, at once."""
    words = ("volume", "snapshot", "create", "--force", "--volume", volume, f"of-{volume}")
    shown = ("-f", "value", "-c", "id")
    # From 3.66 on Cinder needs no force, and refuses the word.
    return str(lab.cloud.openstack(*words, *shown, OS_VOLUME_API_VERSION="3.42"))


def wait_snapshot(lab: Lab, snapshot: str, status: str) -> None:
    def there() -> bool:
        seen = lab.cloud.cinder.volume_snapshots.get(snapshot).status
        assert seen in {status, "creating", "deleting"}, f"snapshot {snapshot} is {seen}"
        return bool(seen == status)

    wait_until(there, f"snapshot {snapshot} to be {status}", HEARD_S)


def taken(lab: Lab, volume: str) -> str:
    snapshot = take(lab, volume)
    wait_snapshot(lab, snapshot, "available")
    assert_done(lab, "snapshot", volume)
    return snapshot


def delete(lab: Lab, volume: str, snapshot: str) -> None:
    lab.cloud.openstack("volume", "snapshot", "delete", snapshot)
    wait_deleted(lab, snapshot)
    assert_done(lab, "delete_snapshot", volume)


def wait_deleted(lab: Lab, snapshot: str) -> None:
    def gone() -> bool:
        try:
            seen = lab.cloud.cinder.volume_snapshots.get(snapshot).status
        except cinder_errors.NotFound:
            return True
        assert seen == "deleting", f"snapshot {snapshot} is {seen}"
        return False

    wait_until(gone, f"snapshot {snapshot} to be gone", HEARD_S)


def assert_done(lab: Lab, flow: str, volume: str) -> None:
    done = lab.ledger.wait_outcome(flow, volume)
    assert (done["outcome"], done["error"]) == ("completed", None)


def chain(file: Path) -> list[str]:
    """The names of the files that this one reads from, itself first, by what is in them."""
    command = ["qemu-img", "info", "-U", "--backing-chain", "--output=json", str(file)]
    told = subprocess.run(command, check=True, capture_output=True).stdout
    return [Path(layer["filename"]).name for layer in json.loads(told)]


def active(lab: Lab, guest: LabGuest, volume: str) -> Path:
    """The file that the guest writes to; its definition and Cinder have to say the same."""
    live, persistent = (guest.source(volume, persistent=where) for where in (False, True))
    assert live is not None
    assert persistent == live
    [attachment] = lab.cloud.attachments(volume)
    assert attachment.connection_info["name"] == Path(live).name
    return LAB_DIR / "export/nfs" / Path(live).name


def read_file(file: Path) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        raw = LAB_DIR / "run" / "read.raw"
        convert = ["qemu-img", "convert", "-O", "raw", str(file), str(raw)]
        subprocess.run(convert, check=True)
        try:
            return raw.read_bytes()[offset : offset + length]
        finally:
            raw.unlink()

    return read


@contextmanager
def writing(guest: LabGuest, volume: str) -> Iterator[dict[str, Any]]:
    """The guest writes all the time; "last" is what it had written, in the end."""
    told: dict[str, Any] = {}
    with guest.console() as console:
        writer = Writer(console, wait_node(console, volume))
        told["on"] = lambda: writer.wait_progress(console)
        told["on"]()
        yield told
        told["on"]()
        told["last"] = writer.stop(console)


def test_snapshots_of_a_volume_in_use_come_and_go_while_its_guest_writes(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    volume = new_volume("nfs")
    base = f"volume-{volume}"
    lab.cloud.attach(guest.id, volume)
    with writing(guest, volume) as told:
        one = taken(lab, volume)
        told["on"]()
        two = taken(lab, volume)
        told["on"]()
        three = taken(lab, volume)
        names = [f"{base}.{each}" for each in (three, two, one)]
        assert chain(active(lab, guest, volume)) == [*names, base]
        told["on"]()
        delete(lab, volume, two)
        assert chain(active(lab, guest, volume)) == [names[0], names[2], base]
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    assert_written(read_file(LAB_DIR / "export/nfs" / names[0]), told["last"])
    # Whoever starts it has the file that Cinder tells, which has all.
    lab.cloud.openstack("server", "start", guest.id)
    guest.wait_booted(2)
    with writing(guest, volume) as told:
        delete(lab, volume, one)
        assert chain(active(lab, guest, volume)) == [names[0], base]
        told["on"]()
        delete(lab, volume, three)
        last = active(lab, guest, volume)
        assert chain(last) == [names[0]]
    lab.cloud.detach(guest.id, volume)
    assert_written(read_file(last), told["last"])
    assert not (LAB_DIR / "export/nfs" / base).exists(), "Cinder needs it no more"


def test_an_agent_that_dies_at_a_snapshot_goes_on_when_it_is_back(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    volume = new_volume("nfs")
    lab.cloud.attach(guest.id, volume)
    with writing(guest, volume) as told:
        with lab.dying(lab.agent, SNAPSHOT_SHOW, "after"):
            snapshot = take(lab, volume)
        wait_snapshot(lab, snapshot, "available")
        assert_done(lab, "snapshot", volume)
        told["on"]()
        with lab.dying(lab.agent, SNAPSHOT_SHOW, "after"):
            lab.cloud.cinder.volume_snapshots.delete(snapshot)  # the CLI would look first
        wait_deleted(lab, snapshot)
        assert_done(lab, "delete_snapshot", volume)
        last = active(lab, guest, volume)
        assert chain(last) == [f"volume-{volume}.{snapshot}"]
    lab.cloud.detach(guest.id, volume)
    assert_written(read_file(last), told["last"])


def test_what_no_guest_can_take_part_in_cinder_shows_as_an_error(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    """A server that is off; a volume for several servers (S3)."""
    off, shared = new_volume("nfs"), new_volume("nfs-multi")
    lab.cloud.attach(guest.id, shared)
    snapshots = {shared: take(lab, shared)}
    wait_snapshot(lab, snapshots[shared], "error")
    lab.cloud.attach(guest.id, off)
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    snapshots[off] = take(lab, off)
    wait_snapshot(lab, snapshots[off], "error")
    for volume, snapshot in snapshots.items():
        assert lab.ledger.operation("snapshot", volume) is None
        lab.cloud.openstack("volume", "snapshot", "delete", snapshot)
        wait_deleted(lab, snapshot)
        lab.cloud.detach(guest.id, volume)
