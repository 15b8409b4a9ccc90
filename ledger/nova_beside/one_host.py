"""What Nova and Cinder have of one host, by GET alone, for who wants to adopt it; or of one server,
for who was told that something has become of it.

Servers are read first, with their mappings; then what Cinder has of each, and of each volume.  So
what is made meanwhile looks like something that only Cinder has, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from handlers.drift.rows import UNKNOWN, Unknown
from handlers.drift.seen import SeenAttachment, SeenServer
from handlers.results.adopt import Holder, HostFacts, ServerFacts, VolumeFacts
from host_agent.shared.platform.text import escaped
from ledger.nova_beside.reads import CloudReader, CutListError, Json, bare_device, seen_volume

#: Nova's statuses of a migration that has not ended (nova/objects/migration.py, and those that a
#: resize waits in).
OPEN = (
    *("accepted", "pre-migrating", "preparing", "queued", "running", "post-migrating"),
    *("migrating", "finished", "confirming", "reverting"),
)
#: Of how many servers that are elsewhere an adoption asks whether they may come: somebody waits.
ELSEWHERE_MAX = 100


def read(reader: CloudReader, host: str) -> HostFacts:
    """Raises what Reader.cloud raises."""
    reader.begin()
    disabled, up = service(reader, host)
    moving = {row["instance_uuid"]: row["status"] for row in _migrations(reader, host)}
    order = {"sort_key": "uuid", "sort_dir": "asc", "host": host}
    rows = {
        row["id"]: row for row in reader.pages(reader.nova, "/servers/detail", "servers", **order)
    }
    elsewhere = moving.keys() - rows.keys()
    asked = reader.few(elsewhere, "servers that are elsewhere and have a migration", ELSEWHERE_MAX)
    at_rest = {id_ for id_ in asked if not _comes(reader.server(id_))}
    moving = {id_: at for id_, at in moving.items() if id_ not in at_rest}
    projects: set[str] = set()
    servers = tuple(_server(reader, row, projects) for _, row in sorted(rows.items()))
    servers = tuple(with_providers(reader, each) for each in servers)
    if servers:
        reader.believe(projects)
    return HostFacts(name=host, disabled=disabled, up=up, moving=moving, servers=servers)


def _migrations(reader: CloudReader, host: str) -> Iterator[Json]:
    """Those that are open.  One answer has at most Nova's `max_limit` of them (1000).

    CutListError, if a marker is ignored.
    """
    for status in OPEN:
        query = {"host": host, "status": status}
        while page := _list(reader, "os-migrations", "migrations", **query):
            if page[-1]["uuid"] == query.get("marker"):
                text = "The list of migrations has no end: Nova answers the same page again."
                raise CutListError(text, "Look at what is between the ledger and Nova's API.")
            yield from page
            query["marker"] = page[-1]["uuid"]


def _comes(server: SeenServer | Unknown | None) -> bool:
    """Whether a migration of a server that is elsewhere may end here.  Nova keeps the record of one
    that broke off, also when its server has long been at rest, or deleted.
    """
    return isinstance(server, Unknown) or (server is not None and server.busy)


def with_providers(reader: CloudReader, server: ServerFacts) -> ServerFacts:
    """With how its encrypted volumes are encrypted, which only an adoption depends on."""

    def told(id_: str, volume: VolumeFacts) -> VolumeFacts:
        if not volume.encrypted:
            return volume
        path = f"/volumes/{id_}/encryption"
        return replace(volume, provider=reader.single(reader.cinder, path, "provider"))

    volumes = {id_: told(id_, volume) for id_, volume in server.volumes.items()}
    return replace(server, volumes=volumes)


def read_server(reader: CloudReader, server_id: str) -> ServerFacts | Unknown | None:
    """None: Nova itself says 404; Unknown: it does not tell.  Raises what Reader.cloud raises.

    Nova lists servers of all projects to administrators alone: whoever is none any more is refused
    here, and does not take for gone what is hidden from them.
    """
    reader.begin()
    query = {"all_tenants": "1", "uuid": server_id}
    listed = {row["id"]: row for row in _list(reader, "servers/detail", "servers", **query)}
    row = listed.get(server_id) or reader.single(reader.nova, f"/servers/{server_id}", "server")
    return _server(reader, row, set()) if isinstance(row, Mapping) else row


def attachments(reader: CloudReader, server_id: str) -> list[SeenAttachment]:
    """Those that Cinder lists of a server; on which hosts, its volumes tell."""
    query = {"sort": "id:asc", "instance_id": server_id}
    rows = reader.pages(reader.cinder, "/attachments", "attachments", **query)
    listed = {row["id"]: (row["volume_id"], str(row["status"])) for row in rows}
    return [
        SeenAttachment(id=id_, volume_id=volume_id, server_id=server_id, status=status)
        for id_, (volume_id, status) in listed.items()
    ]


def service(reader: CloudReader, host: str) -> tuple[bool | Unknown | None, bool]:
    """Whether its nova-compute is disabled, and whether it may be working.

    None: Nova knows none there.  UNKNOWN: its cell does not answer Nova, which then tells neither
    (2.69).  Two cells may each have one of that name.  Who is forced down is said to be down, and
    perhaps works.
    """
    found = _list(reader, "os-services", "services", host=host, binary="nova-compute")
    rows = [row for row in found if row["host"] == host]
    if any(row["status"] == "UNKNOWN" for row in rows):
        return UNKNOWN, True
    disabled = all(row["status"] == "disabled" for row in rows) if rows else None
    return disabled, any(row["state"] == "up" or row["forced_down"] for row in rows)


def hosts(reader: CloudReader) -> frozenset[str]:
    """Those whose nova-compute Nova knows."""
    rows = _list(reader, "os-services", "services", binary="nova-compute")
    return frozenset(row["host"] for row in rows)


def _list(reader: CloudReader, path: str, name: str, **query: str) -> list[Json]:
    return list(reader.get(reader.nova, f"/{path}", name, **query))


def _server(reader: CloudReader, row: Json, projects: set[str]) -> ServerFacts:
    """`projects`: those whose volumes Cinder shows are added."""
    seen = reader.seen(row)
    found = reader.mappings({seen.id: seen}, [seen.id]).get(seen.id) if seen.known else None
    seen = found if isinstance(found, SeenServer) else seen
    listed = attachments(reader, seen.id)
    named = {*seen.volumes, *(each.volume_id for each in listed)}
    volumes = {id_: _volume(reader, id_, projects) for id_ in sorted(named)}
    holders = {h.attachment_id: h for each in volumes.values() for h in each.holders}
    flavor = row.get("flavor") or {}
    local = (*map(row.get, ("image", "config_drive")), *map(flavor.get, ("ephemeral", "swap")))
    return ServerFacts(
        seen=seen,
        locked=bool(row.get("locked")),
        local_disks=any(local),
        networks=bool(row.get("addresses")),
        attachments=tuple(_held(each, holders.get(each.id)) for each in listed),
        volumes=volumes,
        ending=frozenset(
            each["id"]
            for each in row.get("os-extended-volumes:volumes_attached", ())
            if each.get("delete_on_termination")
        ),
    )


def _held(seen: SeenAttachment, by: Holder | None) -> SeenAttachment:
    return seen if by is None else replace(seen, host=by.host, since=by.since)


def _volume(reader: CloudReader, id_: str, projects: set[str]) -> VolumeFacts:
    row: Any = reader.single(reader.cinder, f"/volumes/{id_}", "volume")
    if not isinstance(row, Mapping):
        assert row is None or isinstance(row, Unknown), row
        return VolumeFacts(seen=row)
    projects.add(row.get("os-vol-tenant-attr:tenant_id") or "")
    metadata = row.get("metadata") or {}
    return VolumeFacts(
        seen=seen_volume(row),
        encrypted=bool(row.get("encrypted")),
        readonly=metadata.get("readonly") == "True" or metadata.get("attached_mode") == "ro",
        holders=tuple(map(_holder, row.get("attachments") or ())),
    )


def _holder(row: Json) -> Holder:
    return Holder(
        attachment_id=row["attachment_id"],
        server_id=row["server_id"],
        host=escaped(row.get("host_name")),
        device=bare_device(row.get("device")),
        since=row.get("attached_at"),
    )
