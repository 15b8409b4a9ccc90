"""The cloud of the tier with Nova: acts of its users, and what a test breaks by hand."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self
from uuid import uuid4

from cinderclient import exceptions as cinder_errors
from keystoneauth1 import adapter

from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LAB_SRC, SETTLE_S
from tests.printed import printed

CLI_S = 90
#: After its last word Nova takes a nova-compute for working so long (service_down_time); until then
#: no agent is let in on its host.
NOVA_DOWN_S = 60
NEWEST = "2.96"
NOVA = {"OpenStack-API-Version": f"compute {NEWEST}"}
CONNECTOR = {"ip": "127.0.0.1", "host": "elsewhere", "initiator": "iqn.lab", "os_type": "linux"}


def wait_until(holds: Callable[[], Any], what: str, deadline_s: float = SETTLE_S) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {deadline_s} s in vain for {what}"
        time.sleep(0.1)
    return found


class NovaCloud:
    """Nova and Cinder, as a member uses them, as an administrator, and as services do.

    `compute`: the endpoint that clients are to ask; None: the one of the catalog.
    """

    def __init__(self, compute: str | None = None) -> None:
        self.cinder = person("member").cinder()
        self.admin = person("admin").cinder()
        #: With a service's token: Cinder does not ask Nova whose an attachment is.
        self.as_service = person("nova").cinder(passed_on_by=person("nova"))
        self.of_admin, self.of_member = (_nova(name, compute) for name in ("admin", "member"))

    # --- acts -------------------------------------------------------------------------------

    def volume(self, kind: str = "fake") -> str:
        made = self.cinder.volumes.create(1, volume_type=kind, name="lab-nova")
        self.wait_status(made.id, "available")
        return str(made.id)

    def server(self, root: str | None = None) -> str:
        """A running one, with this root volume or one of its own."""
        root = root or self.volume()
        self.cinder.volumes.set_bootable(root, True)
        [flavor] = self.of_member.get("/flavors").json()["flavors"]
        disk = {"uuid": root, "source_type": "volume", "destination_type": "volume"}
        body = {
            "name": "lab-nova",
            "flavorRef": flavor["id"],
            "networks": "none",
            "block_device_mapping_v2": [disk | {"boot_index": 0, "delete_on_termination": True}],
        }
        made = self.of_member.post("/servers", json={"server": body}, headers=NOVA).json()
        return self.wait_server(made["server"]["id"])

    def attach(self, server_id: str, volume_id: str) -> str:
        """The attachment."""
        path = f"/servers/{server_id}/os-volume_attachments"
        body = {"volumeAttachment": {"volumeId": volume_id}}
        self.of_member.post(path, json=body, headers=NOVA)
        self.wait_status(volume_id, "in-use")
        wait_until(lambda: self.rests(server_id), f"{server_id} to have it")
        return self.mappings(server_id)[volume_id]

    def wait_for_calls(self, server_id: str) -> None:
        """Until Nova's API reaches the server's host by the bus again; at first it says 500."""
        path = f"/servers/{server_id}/diagnostics"
        answers = lambda: self.of_admin.get(path, headers=NOVA, raise_exc=False).ok  # noqa: E731
        wait_until(answers, "Nova to use the bus again")

    def detach(self, server_id: str, volume_id: str) -> None:
        path = f"/servers/{server_id}/os-volume_attachments/{volume_id}"
        asked = self.of_member.delete(path, headers=NOVA, raise_exc=False)
        assert asked.ok, asked.text
        self.wait_status(volume_id, "available")
        wait_until(lambda: volume_id not in self.mappings(server_id), "the mapping to go")

    def act(self, server_id: str, **what: Any) -> None:
        """Something that an administrator has Nova do."""
        path = f"/servers/{server_id}/action"
        asked = self.of_admin.post(path, json=what, headers=NOVA, raise_exc=False)
        assert asked.ok, asked.text

    def migrate(self, server_id: str) -> None:
        """A live migration, to whatever host there is else."""
        before = self.host(server_id)
        self.act(server_id, **{"os-migrateLive": {"host": None, "block_migration": "auto"}})
        wait_until(lambda: self.host(server_id) != before, f"{server_id} to be moved")
        self.wait_server(server_id)

    def bring(self, server_id: str, status: str, **what: Any) -> None:
        """Into that status, by an action of an administrator."""
        self.act(server_id, **what)
        self.wait_server(server_id, status)

    def set_service(self, host: str, **what: Any) -> None:
        path = f"/os-services/{self.service(host)['id']}"
        self.of_admin.put(path, json=what, headers=NOVA)

    def delete_server(self, server_id: str) -> None:
        path = f"/servers/{server_id}"
        self.of_admin.delete(path, raise_exc=False)
        gone = lambda: self.of_admin.get(path, raise_exc=False).status_code == 404  # noqa: E731
        wait_until(gone, f"{server_id} to be gone")

    # --- what is so ---------------------------------------------------------------------------

    def shown(self, server_id: str) -> dict[str, Any]:
        found = self.of_admin.get(f"/servers/{server_id}", headers=NOVA).json()
        return dict(found["server"])

    def service(self, host: str) -> dict[str, Any]:
        """Nova's compute service there."""
        path = f"/os-services?binary=nova-compute&host={host}"
        [found] = self.of_admin.get(path, headers=NOVA).json()["services"]
        return dict(found)

    def host(self, server_id: str) -> str:
        return str(self.shown(server_id)["OS-EXT-SRV-ATTR:host"])

    def rests(self, server_id: str) -> bool:
        """Whether Nova has ended the last that it was asked for: it writes behind Cinder's word."""
        path = f"/servers/{server_id}/os-instance-actions"
        last = self.of_admin.get(path, headers=NOVA).json()["instanceActions"][0]
        shown = self.of_admin.get(f"{path}/{last['request_id']}", headers=NOVA).json()
        events = shown["instanceAction"]["events"]
        return bool(events) and all(each["finish_time"] for each in events)

    def mappings(self, server_id: str) -> dict[str, str]:
        """Attachments by volume, as Nova has them."""
        path = f"/servers/{server_id}/os-volume_attachments"
        found = self.of_admin.get(path, headers=NOVA).json()["volumeAttachments"]
        return {each["volumeId"]: each["attachment_id"] for each in found}

    def status(self, volume_id: str) -> str:
        return str(self.admin.volumes.get(volume_id).status)

    def wait_status(self, volume_id: str, status: str) -> None:
        wait_until(lambda: self.status(volume_id) == status, f"{volume_id} to be {status}")

    def wait_volume_gone(self, volume_id: str) -> None:
        def gone() -> bool:
            with contextlib.suppress(cinder_errors.NotFound):
                return not self.admin.volumes.get(volume_id)
            return True

        wait_until(gone, f"{volume_id} to be gone")

    def settle(self) -> None:
        """Until nothing is under way: a move that was asked for, a volume that is deleted."""

        def at_rest() -> bool:
            volumes = self.admin.volumes.list(search_opts={"all_tenants": 1})
            rows = self.of_admin.get("/servers/detail?all_tenants=1", headers=NOVA).json()
            return all(row["OS-EXT-STS:task_state"] is None for row in rows["servers"]) and not any(
                each.status == "deleting" for each in volumes
            )

        wait_until(at_rest, "nothing to be under way")

    def wait_server(self, server_id: str, status: str = "ACTIVE") -> str:
        def settled() -> bool:
            seen = self.shown(server_id)
            assert status == "ERROR" or seen["status"] != "ERROR", seen
            return seen["OS-EXT-STS:task_state"] is None and seen["status"] == status

        wait_until(settled, f"{server_id} to be at rest")
        return server_id

    # --- by hand ------------------------------------------------------------------------------

    def attachment(self, server_id: str, volume_id: str, *, used: bool = False) -> str:
        """One that Nova knows nothing of; `used`: a host has it."""
        made = self.as_service.attachments.create(volume_id, {}, server_id)
        id_ = str(made["id"] if isinstance(made, dict) else made.id)
        if used:
            self.as_service.attachments.update(id_, CONNECTOR)
            self.as_service.attachments.complete(id_)
            self.wait_status(volume_id, "in-use")
        return id_

    def cinder_row(self, change: str, *values: str) -> None:
        """What no API does: a row of Cinder's is changed."""
        database = sqlite3.connect(LAB_DIR / "cinder/cinder.sqlite", timeout=CLI_S)
        with contextlib.closing(database), database:
            assert database.execute(change, values).rowcount == 1

    def nova_row(self, change: str) -> None:
        """The same of Nova's."""
        self.nova_database(change)

    def nova_database(self, script: str, *options: str) -> str:
        """What MariaDB's client prints of it, in the database of the cell."""
        socket = f"--socket={LAB_DIR}/run/mariadb.sock"
        words = ["mariadb", "--no-defaults", socket, "-uroot", *options, "nova_cell1"]
        done = subprocess.run(
            words, input=script, stdout=subprocess.PIPE, text=True, check=True, timeout=CLI_S
        )
        return done.stdout

    def set_status(self, volume_id: str, status: str) -> None:
        self.cinder_row("UPDATE volumes SET status = ? WHERE id = ?", status, volume_id)

    @staticmethod
    def openstack(command: str, code: int = 0) -> str:
        """A command line as it was printed, by an administrator: the unmodified client.  It ends
        with `code`.
        """
        env = {**ENV, "OS_CLOUD": "admin", "PATH": f"{LAB_DIR}/venv-client/bin:{ENV['PATH']}"}
        words = ["bash", "-ec", command]
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=CLI_S, check=False
        )
        assert done.returncode == code, f"{command}: {done.returncode}, {done.stdout}{done.stderr}"
        return done.stdout

    def clear(self) -> None:
        """No server and no volume, whatever became of them."""
        for row in self.of_admin.get("/servers?all_tenants=1").json()["servers"]:
            self.of_admin.post(
                f"/servers/{row['id']}/action",
                json={"os-resetState": {"state": "active"}},
                raise_exc=False,
            )
            self.delete_server(row["id"])
        everything = {"all_tenants": 1}
        for each in self.as_service.attachments.list(search_opts=everything):
            with contextlib.suppress(cinder_errors.NotFound):
                self.as_service.attachments.delete(each.id)
        for volume in self.admin.volumes.list(search_opts=everything):
            with contextlib.suppress(cinder_errors.NotFound):
                self.admin.volumes.reset_state(volume.id, "available", "detached")
                self.admin.volumes.force_delete(volume.id)
        gone = lambda: not self.admin.volumes.list(search_opts=everything)  # noqa: E731
        wait_until(gone, "no volume to be left")


def _nova(name: str, endpoint: str | None) -> adapter.Adapter:
    return adapter.Adapter(
        person(name).session,
        service_type="compute",
        interface="public",
        endpoint_override=endpoint,
    )


#: How long a cloud is at work for a test: for rounds of each kind, and for minutes.
ROUNDS, MINUTES = 3, float(ENV.get("LAB_WORK_MINUTES", "0"))


class Work:
    """Servers are made, given volumes, moved, shelved and deleted, by one thread for each kind of
    volume.  `done`: the volumes of rounds that have ended.
    """

    def __init__(self, cloud: NovaCloud) -> None:
        self._cloud, self._enough = cloud, threading.Event()
        self._until = time.monotonic() + MINUTES * 60
        self._failed: list[BaseException] = []
        self.done: dict[str, list[str]] = {"fake": [], "fake-multi": []}

    def goes_on(self) -> bool:
        lasts = time.monotonic() < self._until
        return not self._failed and (lasts or any(len(e) < ROUNDS for e in self.done.values()))

    def _work(self, kind: str) -> None:
        try:
            while not self._enough.is_set():
                self._round(kind)
        except BaseException as error:
            self._failed.append(error)
            raise

    def _round(self, kind: str) -> None:
        cloud = self._cloud
        server, volume = cloud.server(), cloud.volume(kind)
        cloud.attach(server, volume)
        cloud.migrate(server)
        cloud.bring(server, "SHELVED_OFFLOADED", shelve=None)
        cloud.bring(server, "ACTIVE", unshelve=None)
        cloud.detach(server, volume)
        cloud.delete_server(server)
        cloud.cinder.volumes.delete(volume)
        self.done[kind].append(volume)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._work, args=[kind]) for kind in self.done]
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for each in self._threads:
            each.join()
        assert not self._failed


@contextlib.contextmanager
def read_only() -> Iterator[dict[str, str]]:
    """An administrator's application credential that may GET alone: options of keystoneauth."""
    name = f"observer-{uuid4()}"
    words = printed("observe.md", "openstack application credential create", observer=name)
    told = json.loads(NovaCloud.openstack(f"{words} -f json"))
    credential = {each.lower(): value for each, value in told.items()}
    try:
        yield {
            "auth_type": "v3applicationcredential",
            "auth_url": ENV["LEDGER_LAB_KEYSTONE"],
            "application_credential_id": credential["id"],
            "application_credential_secret": credential["secret"],
        }
    finally:
        NovaCloud.openstack(f"openstack application credential delete {credential['id']}")


def survey(*options: str, **env: str) -> tuple[int, list[dict[str, Any]], str]:
    """`attachment-ledger survey` beside all this: its exit status, findings, and words."""
    command = [f"{ENV['LAB_VENV']}/bin/attachment-ledger", "survey", "-f", "json", *options]
    given = {**ENV, "OS_CLOUD": "admin", **env}
    done = subprocess.run(
        command,
        env={name: value for name, value in given.items() if value},
        capture_output=True,
        text=True,
        timeout=CLI_S * 2,
        cwd=LAB_SRC,
        check=False,
    )
    rows = json.loads(done.stdout) if done.stdout.strip() else []
    return done.returncode, rows, done.stderr
