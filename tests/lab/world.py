"""The cloud as the tests see it: the openstack CLI, Cinder, and the data on its volumes.

Tests act through the unmodified `openstack` CLI where a user would; Cinder is read
directly where the CLI does not show what is asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cinderclient import exceptions as cinder_errors

from tests.lab.guest import wait_until
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, SETTLE_S

CLI_S = 90
VOLUME_GB = 1
#: Cinder's qemu-img measures how fast it can hash, by a clock that may not tick meanwhile.
ATTEMPTS = 10
NEWEST = "2.95"  # by then a server is unshelved to a host, and what evacuated stays off


class CliError(AssertionError):
    """The openstack CLI failed; the message is what it printed."""


class Cloud:
    """Cinder and the CLI."""

    def __init__(self) -> None:
        self.cinder = person("member").cinder()
        service = person("ledger")  # of the roles service and admin
        self.as_service = service.cinder(passed_on_by=service)

    def openstack(self, *words: str, **environment: str) -> Any:
        """The CLI's answer (`-f json` where it can), CliError with its words otherwise."""
        command = [str(LAB_DIR / "venv-client/bin/openstack"), *words]
        env = ENV | environment
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=CLI_S, check=False
        )
        if done.returncode:
            raise CliError(f"{' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout) if "json" in words else done.stdout.strip()

    def admin(self, *words: str) -> Any:
        """The same, as one who may move the servers of others."""
        return self.openstack(*words, OS_CLOUD="admin", OS_COMPUTE_API_VERSION=NEWEST)

    def create_volume(self, kind: str) -> str:
        """A volume of VOLUME_GB, ready to be attached."""
        volume = self.cinder.volumes.create(VOLUME_GB, volume_type=kind, name=f"lab-{kind}")

        def ready() -> bool:
            seen = self.cinder.volumes.get(volume.id)
            assert seen.status != "error", f"Cinder failed to create {kind} volume {volume.id}"
            return seen.status == "available" and bool(seen.service_uuid)

        wait_until(ready, f"volume {volume.id} to be available", SETTLE_S)
        return str(volume.id)

    def ask_for_volume(self, kind: str) -> str:
        return str(self.cinder.volumes.create(VOLUME_GB, volume_type=kind).id)

    def create_encrypted(self, backend: str) -> list[str]:
        """The last one is ready; those before it Cinder has failed to make."""
        made: list[str] = []
        for _ in range(ATTEMPTS):
            made.append(self.ask_for_volume(f"{backend}-luks"))
            if self.wait_made(made[-1]) == "available":
                break
        return made

    def wait_made(self, volume_id: str) -> str:
        """The volume's status once it is made, or could not be."""

        def settled() -> str | None:
            seen = self.cinder.volumes.get(volume_id)
            made = seen.status == "available" and bool(seen.service_uuid)
            return str(seen.status) if made or seen.status == "error" else None

        return str(wait_until(settled, f"volume {volume_id} to be made", SETTLE_S))

    def attach(self, server_id: str, volume_id: str) -> None:
        self.openstack("server", "add", "volume", server_id, volume_id)
        self.wait_status(volume_id, "in-use")

    def detach(self, server_id: str, volume_id: str) -> None:
        self.openstack("server", "remove", "volume", server_id, volume_id)
        self.wait_status(volume_id, "available")

    def volume_status(self, volume_id: str) -> str:
        return str(self.cinder.volumes.get(volume_id).status)

    def attachments(self, volume_id: str) -> list[Any]:
        found = self.cinder.attachments.list(search_opts={"volume_id": volume_id})
        return [self.cinder.attachments.show(item.id) for item in found]

    def wait_status(self, volume_id: str, status: str, deadline_s: float = SETTLE_S) -> None:
        def there() -> bool:
            return self.volume_status(volume_id) == status

        wait_until(there, f"volume {volume_id} to be {status}", deadline_s, poll_s=0.1)

    def wait_gone(self, volume_id: str) -> None:
        def gone() -> bool:
            found = self.cinder.volumes.list(search_opts={"all_tenants": 1})
            return volume_id not in {each.id for each in found}

        wait_until(gone, f"volume {volume_id} to be gone", SETTLE_S)

    def remove_volume(self, volume_id: str) -> None:
        """Delete the volume if nothing is attached; a failed test leaves it to be looked at."""
        with contextlib.suppress(cinder_errors.ClientException):
            self.cinder.volumes.delete(volume_id)

    def data(self, volume_id: str, offset: int, length: int) -> bytes:
        """What is on the volume, read past the guest, from the backend itself."""
        if file := share_file(self.backend_name(volume_id)):
            with file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(length)
        image = f"volumes/{self.backend_name(volume_id)}"
        command = ["rbd", "--conf", ENV["CEPH_CONF"], "export", image, "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as rbd:
            assert rbd.stdout is not None
            rbd.stdout.read(offset)
            found = rbd.stdout.read(length)
            rbd.kill()
        return found

    def fill(self, volume_id: str) -> None:
        """Data, so that a copy takes its time; beyond where a `Writer` gets."""
        write = [
            "qemu-io",
            "-f",
            "raw",
            "-c",
            f"write -P 0xab {GUARD} {FILLED}",
            self._image(volume_id),
        ]
        subprocess.run(write, check=True, capture_output=True)

    def move_export(self, volume_id: str, address: str) -> None:
        """The file server's address is another: Cinder mounts it there, and has it noted."""
        database = sqlite3.connect(LAB_DIR / "cinder/cinder.sqlite", timeout=CLI_S)
        with contextlib.closing(database), database:
            of_volume = "FROM volumes WHERE id = ?"
            [before] = database.execute(f"SELECT provider_location {of_volume}", [volume_id])
            moved = f"{address}:{before[0].partition(':')[2]}"
            change = "UPDATE volumes SET provider_location = ? WHERE id = ?"
            database.execute(change, [moved, volume_id])
        mounted = LAB_DIR / "mnt-cinder" / hashlib.md5(moved.encode()).hexdigest()
        if not mounted.is_mount():
            mounted.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "nfs", moved, str(mounted)], check=True)

    def extend(self, volume_id: str, size_gb: int) -> None:
        """`openstack volume set --size` of a volume in use; Cinder then tells the ledger."""
        words = ("volume", "set", "--size", str(size_gb), volume_id)
        self.openstack(*words, OS_VOLUME_API_VERSION="3.42")

    def note_size(self, volume_id: str, size_gb: int) -> None:
        """Cinder has extended it, for all it knows: as a driver would that can, of a file that a
        guest has open (Cinder 29's NFS driver refuses, LP 1870367).
        """
        database = sqlite3.connect(LAB_DIR / "cinder/cinder.sqlite", timeout=CLI_S)
        with contextlib.closing(database), database:
            change = "UPDATE volumes SET size = ? WHERE id = ?"
            database.execute(change, [size_gb, volume_id])

    def make_bootable(self, volume_id: str, system: str) -> None:
        """Write the tiny Linux on the volume; booted from there its kernel is told `system`."""
        with tempfile.NamedTemporaryFile(dir=LAB_DIR / "run") as image:
            boot_image(Path(image.name), system)
            convert = ["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw"]
            subprocess.run([*convert, image.name, self._image(volume_id)], check=True)
        self.cinder.volumes.set_bootable(volume_id, True)

    def _image(self, volume_id: str) -> str:
        """The volume's data, in the words of QEMU's tools."""
        name = self.backend_name(volume_id)
        return str(share_file(name) or f"rbd:volumes/{name}:conf={ENV['CEPH_CONF']}:id=cinder")

    def backend_name(self, volume_id: str) -> str:
        """Cinder may keep a migrated volume under the name it was made with."""
        volume = self.as_service.volumes.get(volume_id)
        return f"volume-{getattr(volume, 'os-vol-mig-status-attr:name_id', None) or volume_id}"

    def migration_status(self, volume_id: str) -> str | None:
        volume = self.as_service.volumes.get(volume_id)
        return getattr(volume, "os-vol-mig-status-attr:migstat", None)

    def backend_of(self, volume_id: str) -> str:
        """Where Cinder has the volume now: "nfs", "nfs2" or "rbd"."""
        host = getattr(self.as_service.volumes.get(volume_id), "os-vol-host-attr:host")
        return str(host).partition("@")[2].partition("#")[0]

    def attached_hosts(self, volume_id: str) -> list[str]:
        """The hosts that Cinder has connected it to."""
        found = self.as_service.volumes.get(volume_id).attachments
        return [str(attachment["host_name"]) for attachment in found]

    def users(self, volume_id: str) -> list[str]:
        """The hosts that have the volume's data open: processes (NFS), watchers (RBD)."""
        name = self.backend_name(volume_id)
        if share_file(name):
            return sorted({_host_of(link) for link in _open_files() if _leads_to(link, name)})
        command = ["rbd", "--conf", ENV["CEPH_CONF"], "status", f"volumes/{name}"]
        command += ["--format", "json"]
        status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return sorted({_ADDRESSES[item["address"].split(":")[0]] for item in status["watchers"]})


def boot_image(file: Path, system: str) -> None:
    """Write a disk with the tiny Linux to the file; its kernel is told `system`."""
    shutil.copyfile(LAB_DIR / "guest/boot.img", file)
    lines = f"default system\nlabel system\nkernel vmlinuz\n{BOOT_LINES} system={system}\n"
    mcopy = ["mcopy", "-o", "-i", str(file), "-", "::syslinux.cfg"]
    subprocess.run(mcopy, input=lines, text=True, check=True)


GUARD, FILLED = "384M", "512M"  # where `fill` begins, and how much it writes
BOOT_LINES = "initrd initramfs\nappend console=ttyS0 quiet nokaslr mitigations=off no_timer_check"
_ADDRESSES = {
    ENV["LAB_ADDRESS"]: ENV["LAB_HOST"],
    ENV["LAB_ADDRESS_2"]: ENV["LAB_HOST_2"],
}


def share_file(name: str) -> Path | None:
    """The volume's file, if it is on one of the NFS shares."""
    return next((LAB_DIR / "export").glob(f"*/{name}"), None)


def _open_files() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*/fd/*")


def _host_of(link: Path) -> str:
    """By the mount namespace: the second host has its own."""
    mine = Path("/proc/self/ns/mnt").readlink()
    same = (link.parent.parent / "ns/mnt").readlink() == mine
    return ENV["LAB_HOST"] if same else ENV["LAB_HOST_2"]


def _leads_to(link: Path, name: str) -> bool:
    try:
        return link.readlink().name == name
    except OSError:  # the process or the descriptor is gone
        return False
