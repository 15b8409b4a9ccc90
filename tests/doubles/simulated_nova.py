"""A simulated Nova over HTTP, as far as an observer asks it; true to Nova 34 at microversion 2.89.

It acts on a simulated Cinder's model as Nova acts on Cinder, in the same order: a mapping names its
attachment before Cinder has the connector; in a live migration it names the new one while the host
is the source still; only what touches the server itself changes `updated`.  `asked` has every
request with its method, whoever sent it.

It can be wrong, too: `denied` servers are there, and it says 404 of them; `purge` and `restore` are
what operators do to its database; another Nova's answers are those of other `servers`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from ledger.trial.cinder.model import legacy
from ledger.trial.cinder.model.model import CinderModel
from tests.doubles.served import Handler, served

Row = dict[str, Any]

RUNNING, SHUTDOWN = 1, 4
#: From here on a mapping tells its attachment and its own id.
MICROVERSION = "compute 2.89"


@dataclass
class Mapping:
    volume_id: str
    attachment_id: str
    device: str
    id: str = field(default_factory=lambda: str(uuid4()))
    old: bool = False  # by Cinder's old calls: then Nova lists the volume alone

    def shown(self, server_id: str) -> Row:
        return {
            "volumeId": self.volume_id,
            "serverId": server_id,
            "device": self.device,
            "tag": None,
            "delete_on_termination": False,
            "attachment_id": self.attachment_id,
            "bdm_uuid": self.id,
        }


@dataclass
class Server:
    id: str
    name: str
    host: str | None
    project_id: str = "theirs"
    vm_state: str = "active"
    task_state: str | None = None
    power_state: int = RUNNING
    mappings: list[Mapping] = field(default_factory=list)
    image: str = ""  # "": it boots from a volume
    root: str = "/dev/vda"
    locked: bool = False
    actions: list[Row] = field(default_factory=list)  # the newest first

    def asked(self, action: str, at: str, message: str | None = None) -> None:
        """What Nova keeps of it; `at`: UTC, in whole seconds."""
        row = {"action": action, "instance_uuid": self.id, "start_time": at, "message": message}
        who = {"user_id": "somebody", "project_id": self.project_id}
        self.actions.insert(0, row | who | {"request_id": f"req-{uuid4()}", "updated_at": None})

    def shown(self) -> Row:
        return {
            "image": self.image and {"id": self.image},
            "flavor": {"ephemeral": 0, "swap": 0},
            "addresses": {},
            "locked": self.locked,
            "id": self.id,
            "name": self.name,
            "tenant_id": self.project_id,
            "user_id": "somebody",
            "OS-EXT-SRV-ATTR:host": self.host,
            "OS-EXT-SRV-ATTR:root_device_name": self.root,
            "OS-EXT-STS:vm_state": self.vm_state,
            "OS-EXT-STS:task_state": self.task_state,
            "OS-EXT-STS:power_state": self.power_state,
            "os-extended-volumes:volumes_attached": [
                {"id": each.volume_id, "delete_on_termination": False} for each in self.mappings
            ],
        }


class SimulatedNova:
    """Served by `running_nova`.  `broken`: paths, or parts of them, that are answered with 500.
    `deleted`: servers that only an administrator lists, until they are purged.
    """

    def __init__(self, cinder: CinderModel) -> None:
        self.cinder = cinder
        self.url = ""
        self.servers: dict[str, Server] = {}
        self.deleted: dict[str, Server] = {}
        self.denied: set[str] = set()
        self.hosts: set[str | None] = set()  # that have no server any more
        self.blunt = False  # whom it hears may not ask for deleted servers, so it lists the others
        self.asked: list[str] = []
        self.disabled: set[str] = set()  # hosts whose nova-compute is
        self.down: set[str] = set()  # the same
        self.broken: set[str] = set()
        self.silent = threading.Event()  # nothing is answered any more
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ what Nova does

    def boot(self, name: str, host: str | None = "hv1") -> Server:
        server = Server(id=str(uuid4()), name=name, host=host)
        self.servers[server.id] = server
        return server

    def reserve(self, server: Server, volume_id: str) -> Mapping:
        """An attach as far as nova-api does it."""
        with self._lock:
            row = self.cinder.attachment_create(volume_id, server.id)
            device = f"/dev/vd{'abcdefgh'[len(server.mappings) + 1]}"
            server.mappings.append(Mapping(volume_id, row.id, device))
            return server.mappings[-1]

    def attach(self, server: Server, volume_id: str) -> Mapping:
        with self._lock:
            mapping = self.reserve(server, volume_id)
            self.cinder.attachment_update(mapping.attachment_id, {"host": server.host})
            self.cinder.attachment_complete(mapping.attachment_id)
            return mapping

    def attach_by_old_calls(self, server: Server, volume_id: str) -> Mapping:
        """As Nova did until Queens: what it maps has no attachment."""
        with self._lock:
            device = f"/dev/vd{'abcdefgh'[len(server.mappings) + 1]}"
            volume = self.cinder.volume(volume_id)
            legacy.reserve(self.cinder, volume, {})
            legacy.initialize_connection(self.cinder, volume, {"connector": {"host": server.host}})
            told = {"mountpoint": device, "instance_uuid": server.id, "host_name": server.host}
            legacy.attach(self.cinder, volume, told)
            server.mappings.append(Mapping(volume_id, "", device, old=True))
            return server.mappings[-1]

    def detach(self, server: Server, mapping: Mapping) -> None:
        with self._lock:
            self.cinder.attachment_delete(mapping.attachment_id)
            server.mappings.remove(mapping)

    def begin_live_migration(self, server: Server, to: str) -> list[str]:
        """Until both hosts have the volumes; the attachments of the source."""
        with self._lock:
            server.task_state = "migrating"
            olds = [mapping.attachment_id for mapping in server.mappings]
            for mapping in server.mappings:
                row = self.cinder.attachment_create(mapping.volume_id, server.id, {"host": to})
                mapping.attachment_id = row.id
                self.cinder.attachment_complete(row.id)
            return olds

    def end_live_migration(self, server: Server, to: str, olds: list[str]) -> None:
        with self._lock:
            for each in olds:
                self.cinder.attachment_delete(each)
            server.host, server.task_state = to, None

    def evacuate(self, server: Server, to: str) -> None:
        """Its host is down: what that has connected stays there (ComputeManager._detach_volume)."""
        with self._lock:
            self.shelve_offload(server)
            server.vm_state, server.power_state, server.host = "active", RUNNING, to
            for mapping in server.mappings:
                self.cinder.attachment_update(mapping.attachment_id, {"host": to})
                self.cinder.attachment_complete(mapping.attachment_id)

    def shelve_offload(self, server: Server) -> None:
        with self._lock:
            for mapping in server.mappings:
                old = mapping.attachment_id
                mapping.attachment_id = self.cinder.attachment_create(
                    mapping.volume_id, server.id
                ).id
                self.cinder.attachment_delete(old)
            server.host, server.vm_state = None, "shelved_offloaded"
            server.power_state = SHUTDOWN

    def delete(self, server: Server) -> None:
        with self._lock:
            for mapping in list(server.mappings):
                self.detach(server, mapping)
            self.deleted[server.id] = self.servers.pop(server.id)
            self.hosts.add(server.host)

    def purge(self) -> None:
        """As `nova-manage db archive_deleted_rows` does."""
        with self._lock:
            self.deleted.clear()

    def restore(self, server: Server) -> None:
        """A backup of before its deletion, of Nova's database."""
        with self._lock:
            self.servers[server.id] = server
            self.deleted.pop(server.id, None)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Nobody is answered meanwhile."""
        with self._lock:
            yield

    # ------------------------------------------------------------------ what it answers

    def answer(self, method: str, path: str, version: str | None) -> tuple[int, Row]:
        url = urlsplit(path.removeprefix("/v2.1"))
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        with self._lock:
            self.asked.append(f"{method} {path}")
            if any(each in path for each in self.broken):
                return 500, {"computeFault": {"code": 500, "message": "Unexpected API Error."}}
            if method != "GET":
                return 403, {"forbidden": {"code": 403, "message": "not for observers"}}
            if version != MICROVERSION:
                return 406, {"computeFault": {"code": 406, "message": f"version {version}"}}
            return self._read(url.path.rstrip("/").split("/")[1:], query)

    def _read(self, parts: list[str], query: dict[str, str]) -> tuple[int, Row]:
        if parts == ["servers", "detail"]:
            return self._page(query)
        if parts == ["os-services"]:
            return 200, {"services": self._services(query)}
        if parts == ["os-migrations"]:
            return 200, {"migrations": []}
        server = self.servers.get(parts[1])
        if server is None or server.id in self.denied:
            message = f"Instance {parts[1]} could not be found."
            return 404, {"itemNotFound": {"code": 404, "message": message}}
        if parts[2:] == ["os-volume_attachments"]:
            shown = [each.shown(server.id) for each in server.mappings if not each.old]
            return 200, {"volumeAttachments": shown}
        if parts[2:] == ["os-instance-actions"]:
            return 200, {"instanceActions": server.actions[: int(query["limit"])]}
        return 200, {"server": server.shown()}

    def _services(self, query: dict[str, str]) -> list[Row]:
        hosts = self.hosts | {each.host for each in self.servers.values()}
        hosts = {each for each in hosts if query.get("host") in {None, each}}
        return [
            {
                "host": host,
                "binary": query["binary"],
                "status": "disabled" if host in self.disabled else "enabled",
                "state": "down" if host in self.down else "up",
                "forced_down": False,
            }
            for host in sorted(filter(None, hosts))
        ]

    def _page(self, query: dict[str, str]) -> tuple[int, Row]:
        """By uuid, as `sort_key` asks; without `all_tenants` an admin sees one project."""
        if query.get("all_tenants") != "1" or query.get("sort_key", "uuid") != "uuid":
            return 400, {"badRequest": {"code": 400, "message": str(query)}}
        host = query.get("host")
        uuid = query.get("uuid")
        asks_for_deleted = query.get("deleted") == "true"
        if asks_for_deleted and not self.blunt:
            rows = [each.shown() for id_, each in self.deleted.items() if uuid in {None, id_}]
            return 200, {"servers": [{**row, "status": "DELETED"} for row in rows]}
        there = self.servers.keys() - (set() if asks_for_deleted else self.denied)
        ids = sorted(id_ for id_ in there if host in {None, self.servers[id_].host})
        ids = [id_ for id_ in ids if uuid in {None, id_}]
        marker = query.get("marker")
        if marker is not None and marker not in self.servers:
            return 400, {"badRequest": {"code": 400, "message": f"marker [{marker}] not found"}}
        begin = ids.index(marker) + 1 if marker else 0
        page = ids[begin : begin + int(query.get("limit", 1000))]
        return 200, {"servers": [self.servers[id_].shown() for id_ in page]}


class _Handler(Handler):
    nova: SimulatedNova

    def respond(self) -> None:
        version = self.headers.get("OpenStack-API-Version")
        status, body = self.nova.answer(self.command, self.path, version)
        if self.nova.silent.is_set():
            threading.Event().wait()  # until the process ends
        self.answer(status, json.dumps(body).encode(), Content_Type="application/json")


@contextmanager
def running_nova(cinder: CinderModel) -> Iterator[SimulatedNova]:
    """Serve it on loopback for the length of the `with`."""
    nova = SimulatedNova(cinder)
    with served(type("Nova", (_Handler,), {"nova": nova})) as nova.url:
        yield nova
