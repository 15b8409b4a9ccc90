"""Every route of the service: the table of contents of the API.

The application, the policy check and the OpenAPI document are all made from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from aiohttp import web

from ledger.api import (
    actions,
    agents,
    attachments,
    builds,
    cinder_events,
    events,
    flavors,
    flows,
    health,
    hosts,
    instance_actions,
    migrations,
    operations,
    refusals,
    remnants,
    schemas,
    schemas_actions,
    schemas_agent,
    schemas_attachments,
    schemas_events,
    schemas_nova,
    schemas_refusals,
    schemas_remnants,
    schemas_servers,
    servers,
    versions,
    volume_attachments,
)
from ledger.api.call import Call
from ledger.api.openapi import document
from ledger.api.route import Route

_SERVERS = "/v2.1/servers"
_VOLUMES = "/v2.1/servers/{server_id}/os-volume_attachments"
_MIGRATIONS = "/v2.1/servers/{server_id}/migrations"
_ACTIONS = "/v2.1/servers/{server_id}/os-instance-actions"
_HISTORY: dict[str, Any] = {"query": schemas.HistoryQuery, "answers": {200: schemas_events.Events}}
_IDEMPOTENT = ("Idempotency-Key",)


def _get(name: str, path: str, handler: Any, answer: Any, **more: Any) -> Route:
    return Route(name=name, method="GET", path=path, handler=handler, answers={200: answer}, **more)


async def _openapi(call: Call) -> web.StreamResponse:
    """GET /openapi.json: what this table and its models say."""
    del call
    return web.Response(body=_document(), content_type="application/json")


@lru_cache(maxsize=1)
def _document() -> bytes:
    return orjson.dumps(document(ROUTES))


_ROOT = (
    _get("versions", "/", versions.versions, schemas_nova.Versions),
    _get("health", "/healthz", health.health, schemas.Health),
    Route(
        name="ready",
        method="GET",
        path="/readyz",
        handler=health.ready,
        answers={200: schemas.Health, 503: schemas.Health},
    ),
    _get("metrics", "/metrics", health.metrics, "text/plain"),
    _get("openapi", "/openapi.json", _openapi, "application/json"),
)

_NOVA = (
    _get("version", "/v2.1", versions.version, schemas_nova.VersionAnswer),
    _get("version", "/v2.1/", versions.version, schemas_nova.VersionAnswer),
    _get(
        "servers", _SERVERS, servers.servers, schemas_nova.Servers, query=schemas_nova.ServersQuery
    ),
    _get(
        "servers_detail",
        f"{_SERVERS}/detail",
        servers.servers_detail,
        schemas_nova.Servers,
        query=schemas_nova.ServersQuery,
    ),
    _get("server", f"{_SERVERS}/{{server_id}}", servers.server, schemas_nova.ServerAnswer),
    _get(
        "volume_attachments",
        _VOLUMES,
        volume_attachments.volume_attachments,
        schemas_nova.VolumeAttachments,
        query=schemas_nova.VolumeAttachmentsQuery,
    ),
    Route(
        name="volume_attachment_create",
        method="POST",
        path=_VOLUMES,
        handler=volume_attachments.volume_attachment_create,
        body=schemas_nova.AttachBody,
        answers={200: schemas_nova.VolumeAttachmentAnswer, 202: None},
        headers=_IDEMPOTENT,
    ),
    _get(
        "volume_attachment",
        f"{_VOLUMES}/{{volume_id}}",
        volume_attachments.volume_attachment,
        schemas_nova.VolumeAttachmentAnswer,
    ),
    Route(
        name="volume_attachment_update",
        method="PUT",
        path=f"{_VOLUMES}/{{volume_id}}",
        handler=volume_attachments.volume_attachment_update,
        body=schemas_nova.UpdateBody,
        answers={202: None},
        headers=_IDEMPOTENT,
    ),
    Route(
        name="volume_attachment_delete",
        method="DELETE",
        path=f"{_VOLUMES}/{{volume_id}}",
        handler=volume_attachments.volume_attachment_delete,
        answers={202: None},
        headers=_IDEMPOTENT,
    ),
)

_NOVA_SERVERS = (
    Route(
        name="server_action",
        method="POST",
        path=f"{_SERVERS}/{{server_id}}/action",
        handler=actions.server_action,
        body=schemas_actions.ActionBody,
        answers={200: schemas_nova.EvacuateAnswer, 202: None, 204: None},
        headers=_IDEMPOTENT,
    ),
    Route(
        name="server_delete",
        method="DELETE",
        path=f"{_SERVERS}/{{server_id}}",
        handler=actions.server_delete,
        answers={204: None},
        headers=_IDEMPOTENT,
    ),
    _get("flavors", "/v2.1/flavors", flavors.flavors, schemas_nova.Flavors),
    _get("flavors_detail", "/v2.1/flavors/detail", flavors.flavors, schemas_nova.Flavors),
    _get("flavor", "/v2.1/flavors/{flavor_id}", flavors.flavor, schemas_nova.FlavorAnswer),
    _get(
        "flavor_specs",
        "/v2.1/flavors/{flavor_id}/os-extra_specs",
        flavors.flavor_specs,
        schemas_nova.FlavorSpecs,
    ),
    _get(
        "migrations",
        "/v2.1/os-migrations",
        migrations.migrations,
        schemas_nova.Migrations,
        query=schemas_nova.MigrationsQuery,
    ),
    _get("server_migrations", _MIGRATIONS, migrations.server_migrations, schemas_nova.Migrations),
    _get(
        "server_migration",
        f"{_MIGRATIONS}/{{migration_id}}",
        migrations.server_migration,
        schemas_nova.MigrationAnswer,
    ),
    Route(
        name="server_migration_abort",
        method="DELETE",
        path=f"{_MIGRATIONS}/{{migration_id}}",
        handler=migrations.server_migration_abort,
        answers={202: None},
    ),
    Route(
        name="server_migration_action",
        method="POST",
        path=f"{_MIGRATIONS}/{{migration_id}}/action",
        handler=migrations.server_migration_action,
        body=schemas_nova.ForceCompleteBody,
        answers={202: None},
    ),
    _get(
        "instance_actions",
        _ACTIONS,
        instance_actions.instance_actions,
        schemas_nova.InstanceActions,
    ),
    _get(
        "instance_action",
        f"{_ACTIONS}/{{request_id}}",
        instance_actions.instance_action,
        schemas_nova.InstanceActionAnswer,
    ),
    Route(
        name="assisted_snapshot",
        method="POST",
        path="/v2.1/os-assisted-volume-snapshots",
        handler=cinder_events.assisted_snapshot,
        body=schemas_nova.AssistedSnapshotBody,
        answers={},
    ),
    Route(
        name="external_events",
        method="POST",
        path="/v2.1/os-server-external-events",
        handler=cinder_events.external_events,
        body=schemas_nova.ExternalEventsBody,
        answers={207: schemas_nova.ExternalEvents},
    ),
)

_OWN_SERVERS = (
    Route(
        name="server_build",
        method="POST",
        path="/v1/servers",
        handler=builds.build,
        body=schemas_servers.Build,
        answers={202: schemas_servers.Started},
        headers=_IDEMPOTENT,
    ),
    Route(
        name="server_refresh",
        method="POST",
        path="/v1/servers/{server_id}/refresh",
        handler=builds.server_refresh,
        answers={202: schemas_servers.Started},
        headers=_IDEMPOTENT,
    ),
    Route(
        name="server_convert",
        method="POST",
        path="/v1/servers/{server_id}/convert",
        handler=builds.server_convert,
        answers={202: schemas_servers.Started},
        headers=_IDEMPOTENT,
    ),
    Route(
        name="refresh",
        method="POST",
        path="/v1/refresh",
        handler=builds.refresh,
        body=schemas_servers.Many,
        answers={202: schemas_servers.ManyBegun},
    ),
    Route(
        name="convert",
        method="POST",
        path="/v1/convert",
        handler=builds.convert,
        body=schemas_servers.Many,
        answers={202: schemas_servers.ManyBegun},
    ),
)

_OWN = (
    _get(
        "operations",
        "/v1/operations",
        operations.operations,
        schemas.Operations,
        query=schemas.OperationsQuery,
    ),
    _get(
        "operation",
        "/v1/operations/{operation_id}",
        operations.operation,
        schemas.OperationShown,
        query=schemas.OperationQuery,
    ),
    Route(
        name="operation_act",
        method="POST",
        path="/v1/operations/{operation_id}/actions",
        handler=operations.act,
        body=schemas.OperationAct,
        query=schemas.ActQuery,
        answers={200: schemas_remnants.OperationActed},
    ),
    _get(
        "remnants",
        "/v1/remnants",
        remnants.remnants,
        schemas_remnants.Remnants,
        query=schemas_remnants.RemnantsQuery,
    ),
    Route(
        name="remnant_acknowledge",
        method="POST",
        path="/v1/remnants/{remnant_id}/acknowledge",
        handler=remnants.acknowledge,
        body=schemas.Why,
        answers={200: schemas_remnants.RemnantShown},
    ),
    _get(
        "attachments",
        "/v1/attachments",
        attachments.attachments,
        schemas_attachments.AttachmentsAnswer,
        query=schemas_attachments.AttachmentsQuery,
    ),
    _get(
        "attachment",
        "/v1/attachments/{attachment_id}",
        attachments.attachment,
        schemas_attachments.AttachmentShown,
    ),
    _get(
        "request",
        "/v1/requests/{refused_id}",
        refusals.request,
        schemas_refusals.RefusalShown,
    ),
    _get("hosts", "/v1/hosts", hosts.hosts, schemas.Hosts),
    _get("host", "/v1/hosts/{host}", hosts.host, schemas.HostShown),
    Route(
        name="host_fence",
        method="POST",
        path="/v1/hosts/{host}/fence",
        handler=hosts.fence,
        body=schemas.Fence,
        answers={200: schemas.HostShown},
    ),
    Route(
        name="host_unfence",
        method="POST",
        path="/v1/hosts/{host}/unfence",
        handler=hosts.unfence,
        body=schemas.Why,
        answers={200: schemas.HostShown},
    ),
    _get("flows", "/v1/flows", flows.flows, schemas.FlowsShown),
    _get("flow", "/v1/flows/{name}", flows.flow, schemas.FlowShown),
)

_LOG = (
    Route(
        name="volume_history",
        method="GET",
        path="/v1/volumes/{volume_id}/history",
        handler=events.volume_history,
        **_HISTORY,
    ),
    Route(
        name="server_history",
        method="GET",
        path="/v1/servers/{server_id}/history",
        handler=events.server_history,
        **_HISTORY,
    ),
    Route(
        name="attachment_history",
        method="GET",
        path="/v1/attachments/{attachment_id}/history",
        handler=events.attachment_history,
        **_HISTORY,
    ),
    Route(
        name="operation_history",
        method="GET",
        path="/v1/operations/{operation_id}/history",
        handler=events.operation_history,
        **_HISTORY,
    ),
    Route(
        name="host_history",
        method="GET",
        path="/v1/hosts/{host}/history",
        handler=events.host_history,
        **_HISTORY,
    ),
    _get("events", "/v1/events", events.events, schemas_events.Events, query=schemas.EventsQuery),
    _get(
        "event_checkpoint",
        "/v1/events/checkpoint",
        events.event_checkpoint,
        schemas_events.CheckpointShown,
    ),
    _get(
        "event_stream",
        "/v1/events/stream",
        events.event_stream,
        "text/event-stream",
        query=schemas.StreamQuery,
    ),
)

_AGENT = (
    Route(
        name="host_register",
        method="PUT",
        path="/v1/hosts/{host}",
        handler=agents.register,
        body=schemas_agent.RegistrationBody,
        answers={200: schemas.Registered},
    ),
    Route(
        name="host_guests",
        method="POST",
        path="/v1/hosts/{host}/guests",
        handler=agents.guests,
        body=schemas_agent.ChangesBody,
        answers={200: schemas_agent.Again},
    ),
    _get(
        "host_commands",
        "/v1/hosts/{host}/commands",
        agents.commands,
        schemas.Commands,
        query=schemas.CommandsQuery,
    ),
    Route(
        name="host_reports",
        method="POST",
        path="/v1/hosts/{host}/reports",
        handler=agents.reports,
        body=schemas_agent.ReportBody,
        answers={200: schemas_agent.Continue},
    ),
    Route(
        name="host_progress",
        method="POST",
        path="/v1/hosts/{host}/progress",
        handler=agents.progress,
        body=schemas.ProgressBody,
        answers={204: None},
    ),
    _get(
        "host_volume_users",
        "/v1/hosts/{host}/volumes/{volume_id}/users",
        agents.volume_users,
        schemas.Users,
        query=schemas.UsersQuery,
    ),
)

# Agents ask most: of the paths below one prefix, the router tries the first ones first.
ROUTES: tuple[Route, ...] = (
    *_ROOT,
    *_AGENT,
    *_NOVA,
    *_NOVA_SERVERS,
    *_OWN,
    *_OWN_SERVERS,
    *_LOG,
)
