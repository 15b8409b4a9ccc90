"""The routes of /v2.1: Nova's form."""

from __future__ import annotations

from ledger.api import (
    actions,
    cinder_events,
    flavors,
    instance_actions,
    migrations,
    schemas_actions,
    schemas_nova,
    servers,
    versions,
    volume_attachments,
)
from ledger.api.route import IDEMPOTENT, Route, get

_SERVERS = "/v2.1/servers"
_VOLUMES = "/v2.1/servers/{server_id}/os-volume_attachments"
_MIGRATIONS = "/v2.1/servers/{server_id}/migrations"
_ACTIONS = "/v2.1/servers/{server_id}/os-instance-actions"

_VERSIONS_AND_VOLUMES = (
    get("version", "/v2.1", versions.version, schemas_nova.VersionAnswer),
    get("version", "/v2.1/", versions.version, schemas_nova.VersionAnswer),
    get(
        "servers", _SERVERS, servers.servers, schemas_nova.Servers, query=schemas_nova.ServersQuery
    ),
    get(
        "servers_detail",
        f"{_SERVERS}/detail",
        servers.servers_detail,
        schemas_nova.Servers,
        query=schemas_nova.ServersQuery,
    ),
    get("server", f"{_SERVERS}/{{server_id}}", servers.server, schemas_nova.ServerAnswer),
    get(
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
        headers=IDEMPOTENT,
    ),
    get(
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
        headers=IDEMPOTENT,
    ),
    Route(
        name="volume_attachment_delete",
        method="DELETE",
        path=f"{_VOLUMES}/{{volume_id}}",
        handler=volume_attachments.volume_attachment_delete,
        answers={202: None},
        headers=IDEMPOTENT,
    ),
)

_SERVERS_AND_MORE = (
    Route(
        name="server_action",
        method="POST",
        path=f"{_SERVERS}/{{server_id}}/action",
        handler=actions.server_action,
        body=schemas_actions.ActionBody,
        answers={200: schemas_nova.EvacuateAnswer, 202: None, 204: None},
        headers=IDEMPOTENT,
    ),
    Route(
        name="server_delete",
        method="DELETE",
        path=f"{_SERVERS}/{{server_id}}",
        handler=actions.server_delete,
        answers={204: None},
        headers=IDEMPOTENT,
    ),
    get("flavors", "/v2.1/flavors", flavors.flavors, schemas_nova.Flavors),
    get("flavors_detail", "/v2.1/flavors/detail", flavors.flavors, schemas_nova.Flavors),
    get("flavor", "/v2.1/flavors/{flavor_id}", flavors.flavor, schemas_nova.FlavorAnswer),
    get(
        "flavor_specs",
        "/v2.1/flavors/{flavor_id}/os-extra_specs",
        flavors.flavor_specs,
        schemas_nova.FlavorSpecs,
    ),
    get(
        "migrations",
        "/v2.1/os-migrations",
        migrations.migrations,
        schemas_nova.Migrations,
        query=schemas_nova.MigrationsQuery,
    ),
    get("server_migrations", _MIGRATIONS, migrations.server_migrations, schemas_nova.Migrations),
    get(
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
    get(
        "instance_actions",
        _ACTIONS,
        instance_actions.instance_actions,
        schemas_nova.InstanceActions,
    ),
    get(
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
        answers={200: schemas_nova.ExternalEvents, 207: schemas_nova.ExternalEvents},
    ),
)

NOVA = (*_VERSIONS_AND_VOLUMES, *_SERVERS_AND_MORE)
