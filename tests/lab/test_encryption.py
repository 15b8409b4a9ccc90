"""Encrypted volumes: QEMU decrypts them, and what is on the backend nobody can read.

Cinder 29 refuses volumes that are both encrypted and for several servers, so two guests of
one such volume are in tests/contracts/test_guest_secrets.py, on the same libvirt and QEMU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.control import COMPLETE, Lab
from tests.lab.guest import Console, LabGuest, libvirt_of, wait_node
from tests.lab.moving import HERE, THERE, Moving
from tests.lab.settings import ENV, LAB_DIR
from tests.lab.world import share_file
from tests.lab.writing import assert_written

pytestmark = pytest.mark.lab

MARKER = b"nobody-shall-read-this"
SECTOR = 4096
PASSPHRASE = ENV["LAB_FIXED_KEY"]


@pytest.fixture
def volume(encrypted: str) -> str:
    return encrypted


def secret_on(host: str, volume: str) -> bool:
    """Whether the host's libvirt holds what unlocks the volume."""
    kept = libvirt_of(host).listAllSecrets()
    return any(secret.usageID() == volume for secret in kept)


def opened(lab: Lab, volume: str) -> str:
    """The volume and its key, in the words of QEMU's tools."""
    name = lab.cloud.backend_name(volume)
    if file := share_file(name):
        image = {"driver": "qcow2", "file.filename": str(file), "encrypt.key-secret": "key"}
    else:
        rbd = {"driver": "rbd", "pool": "volumes", "image": name, "conf": ENV["CEPH_CONF"]}
        image = {f"file.{key}": value for key, value in {**rbd, "user": "cinder"}.items()}
        image |= {"driver": "luks", "key-secret": "key"}
    return ",".join(f"{key}={value}" for key, value in image.items())


def decrypted(lab: Lab, volume: str, path: Path) -> Callable[[int, int], bytes]:
    """Reads the clear data, of a copy in `path`."""
    convert = ["qemu-img", "convert", "--object", f"secret,id=key,data={PASSPHRASE}"]
    convert += ["--image-opts", opened(lab, volume), "-O", "raw", str(path)]
    subprocess.run(convert, check=True)

    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return read


def assert_unreadable(lab: Lab, volume: str) -> None:
    """The backend's bytes are LUKS, and what the guest wrote is not among them."""
    name = lab.cloud.backend_name(volume)
    if file := share_file(name):
        raw = file.read_bytes()
        info = ["qemu-img", "info", "--output=json", str(file)]
        told = json.loads(subprocess.run(info, check=True, capture_output=True).stdout)
        assert told["format-specific"]["data"]["encrypt"]["format"] == "luks"
    else:
        export = ["rbd", "--conf", ENV["CEPH_CONF"], "export", f"volumes/{name}", "-"]
        raw = subprocess.run(export, check=True, capture_output=True).stdout
        assert raw.startswith(b"LUKS\xba\xbe")
    assert MARKER not in raw


def write(console: Console, volume: str) -> None:
    node = wait_node(console, volume)
    target = f"of=/dev/{node} bs=512 seek={SECTOR} conv=fsync,sync"
    console.run(f"echo -n {MARKER.decode()} | dd {target}")


def read(console: Console, volume: str) -> str:
    source = f"if=/dev/{wait_node(console, volume)} bs=512 skip={SECTOR} count=1"
    return console.run(f"dd {source} 2>/dev/null | tr -d '\\000'")


def assert_key_is_not_told(lab: Lab, volume: str) -> None:
    """Not in any log, record, lock, nor in what the ledger knows."""
    places = [*(LAB_DIR / "log").glob("*.log"), *LAB_DIR.glob("locks-*/**/*.json")]
    assert not [str(file) for file in places if PASSPHRASE in file.read_text(errors="replace")]
    assert PASSPHRASE not in json.dumps(lab.ledger.history(volume))


def test_what_a_guest_writes_is_encrypted_on_the_backend_and_there_again_the_next_time(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    assert secret_on(HERE, volume)
    with guest.console() as console:
        write(console, volume)
        lab.cloud.detach(guest.id, volume)
        assert not secret_on(HERE, volume)
        assert_unreadable(lab, volume)
        with lab.dying(lab.agent, COMPLETE, "after"):
            lab.ledger.attach(guest.id, volume)
        assert lab.ledger.wait_outcome("attach", volume)["outcome"] == "completed"
        assert read(console, volume) == MARKER.decode()
    lab.cloud.detach(guest.id, volume)
    assert not secret_on(HERE, volume)
    assert (guest.disks(), lab.cloud.users(volume)) == ((0, 0), [])
    assert_key_is_not_told(lab, volume)


def test_a_guest_starts_again_after_libvirt_has_lost_the_key(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        write(console, volume)
    lab.libvirtd.kill()
    lab.libvirtd.start()
    assert not secret_on(HERE, volume)
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    lab.cloud.openstack("server", "start", guest.id)
    guest.wait_booted(2)
    with guest.console() as console:
        assert read(console, volume) == MARKER.decode()
    lab.cloud.detach(guest.id, volume)
    assert not secret_on(HERE, volume)


def test_a_guest_moves_with_its_encrypted_volume_and_never_stops_writing(
    lab: Lab, guest: LabGuest, volume: str, tmp_path: Path
) -> None:
    moving = Moving(lab, guest, [volume])
    moving.migrate()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    assert (secret_on(HERE, volume), secret_on(THERE, volume)) == (False, True)
    [last] = moving.stop_writing()
    moving.detach()
    assert not secret_on(THERE, volume)
    assert_written(decrypted(lab, volume, tmp_path / "clear"), last)
