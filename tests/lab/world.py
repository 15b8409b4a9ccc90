"""The cloud as the tests see it: the openstack CLI, Cinder, and the data on its volumes.

Tests act through the unmodified `openstack` CLI where a user would; Cinder is read
directly where the CLI does not show what is asked.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cinderclient import api_versions, client
from cinderclient import exceptions as cinder_errors
from keystoneauth1 import loading, session

from tests.lab.guest import wait_until
from tests.lab.settings import ENV, LAB_DIR

SETTLE_S = 60  # for anything the cloud does, on two busy cores
CLI_S = 90
VOLUME_GB = 1


class CliError(AssertionError):
    """The openstack CLI failed; the message is what it printed."""


class Cloud:
    """Cinder and the CLI."""

    def __init__(self) -> None:
        plugin: Any = loading.get_plugin_loader("noauth")
        auth = plugin.load_from_options(
            user_id=ENV["LAB_USER"],
            project_id=ENV["LAB_PROJECT"],
            endpoint=ENV["CINDER_ENDPOINT"],
        )

        def connect(**headers: str) -> client.Client:
            to = session.Session(auth=auth, additional_headers=headers)
            return client.Client(api_versions.APIVersion("3.71"), session=to)

        self.cinder = connect()  # as a user
        self.as_service = connect(**{"X-Service-Roles": "service"})

    def openstack(self, *words: str) -> Any:
        """The CLI's answer (`-f json` where it can), CliError with its words otherwise."""
        command = [str(LAB_DIR / "venv-client/bin/openstack"), *words]
        done = subprocess.run(
            command, env=ENV, capture_output=True, text=True, timeout=CLI_S, check=False
        )
        if done.returncode:
            raise CliError(f"{' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout) if "json" in words else done.stdout.strip()

    def create_volume(self, kind: str) -> str:
        """A volume of VOLUME_GB, ready to be attached."""
        volume = self.cinder.volumes.create(VOLUME_GB, volume_type=kind, name=f"lab-{kind}")

        def ready() -> bool:
            seen = self.cinder.volumes.get(volume.id)
            assert seen.status != "error", f"Cinder failed to create {kind} volume {volume.id}"
            return seen.status == "available" and bool(seen.service_uuid)

        wait_until(ready, f"volume {volume.id} to be available", SETTLE_S)
        return str(volume.id)

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

    def remove_volume(self, volume_id: str) -> None:
        """Delete the volume if nothing is attached; a failed test leaves it to be looked at."""
        with contextlib.suppress(cinder_errors.ClientException):
            self.cinder.volumes.delete(volume_id)

    def data(self, volume_id: str, offset: int, length: int) -> bytes:
        """What is on the volume, read past the guest, from the backend itself."""
        export = LAB_DIR / "export" / f"volume-{volume_id}"
        if export.exists():
            with export.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        image = f"volumes/volume-{volume_id}"
        command = ["rbd", "--conf", ENV["CEPH_CONF"], "export", image, "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as rbd:
            assert rbd.stdout is not None
            rbd.stdout.read(offset)
            found = rbd.stdout.read(length)
            rbd.kill()
        return found


def host_users(volume_id: str) -> list[str]:
    """Who on this host has the volume's data open: processes (NFS), watchers (RBD)."""
    name = f"volume-{volume_id}"
    if (LAB_DIR / "export" / name).exists():
        return [f"pid {link.parts[2]}" for link in _open_files() if _leads_to(link, name)]
    command = ["rbd", "--conf", ENV["CEPH_CONF"], "status", f"volumes/{name}"]
    command += ["--format", "json"]
    status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [str(watcher["address"]) for watcher in status["watchers"]]


def _open_files() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*/fd/*")


def _leads_to(link: Path, name: str) -> bool:
    try:
        return link.readlink().name == name
    except OSError:  # the process or the descriptor is gone
        return False
