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
    get("version", "/v2.1", versions.version, schemas_nova.VersionAnswer, rules=()),
    get("version", "/v2.1/", versions.version, schemas_nova.VersionAnswer, rules=()),
    get(
        "servers",
        _SERVERS,
        servers.servers,
        schemas_nova.Servers,
        query=schemas_nova.ServersQuery,
        rules=("os_compute_api:servers:index",),
    ),
    get(
        "servers_detail",
        f"{_SERVERS}/detail",
        servers.servers_detail,
        schemas_nova.Servers,
        query=schemas_nova.ServersQuery,
        rules=("os_compute_api:servers:detail",),
    ),
    get(
        "server",
        f"{_SERVERS}/{{server_id}}",
        servers.server,
        schemas_nova.ServerAnswer,
        rules=("os_compute_api:servers:show",),
    ),
    get(
        "volume_attachments",
        _VOLUMES,
        volume_attachments.volume_attachments,
        schemas_nova.VolumeAttachments,
        query=schemas_nova.VolumeAttachmentsQuery,
        rules=("os_compute_api:os-volumes-attachments:index",),
    ),
    Route(
        name="volume_attachment_create",
        method="POST",
        path=_VOLUMES,
        handler=volume_attachments.volume_attachment_create,
        body=schemas_nova.AttachBody,
        answers={200: schemas_nova.VolumeAttachmentAnswer, 202: None},
        headers=IDEMPOTENT,
        rules=("os_compute_api:os-volumes-attachments:create",),
    ),
    get(
        "volume_attachment",
        f"{_VOLUMES}/{{volume_id}}",
        volume_attachments.volume_attachment,
        schemas_nova.VolumeAttachmentAnswer,
        rules=("os_compute_api:os-volumes-attachments:show",),
    ),
    Route(
        name="volume_attachment_update",
        method="PUT",
        path=f"{_VOLUMES}/{{volume_id}}",
        handler=volume_attachments.volume_attachment_update,
        body=schemas_nova.UpdateBody,
        answers={202: None},
        headers=IDEMPOTENT,
        rules=(
            "os_compute_api:os-volumes-attachments:update",
            "os_compute_api:os-volumes-attachments:swap",
        ),
    ),
    Route(
        name="volume_attachment_delete",
        method="DELETE",
        path=f"{_VOLUMES}/{{volume_id}}",
        handler=volume_attachments.volume_attachment_delete,
        answers={202: None},
        headers=IDEMPOTENT,
        rules=("os_compute_api:os-volumes-attachments:delete",),
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
        rules=actions.RULES,
    ),
    Route(
        name="server_delete",
        method="DELETE",
        path=f"{_SERVERS}/{{server_id}}",
        handler=actions.server_delete,
        answers={204: None},
        headers=IDEMPOTENT,
        rules=("os_compute_api:servers:delete",),
    ),
    get(
        "flavors",
        "/v2.1/flavors",
        flavors.flavors,
        schemas_nova.Flavors,
        rules=("attachment-ledger:flavors:list",),
    ),
    get(
        "flavors_detail",
        "/v2.1/flavors/detail",
        flavors.flavors,
        schemas_nova.Flavors,
        rules=("attachment-ledger:flavors:list",),
    ),
    get(
        "flavor",
        "/v2.1/flavors/{flavor_id}",
        flavors.flavor,
        schemas_nova.FlavorAnswer,
        rules=("attachment-ledger:flavors:show",),
    ),
    get(
        "flavor_specs",
        "/v2.1/flavors/{flavor_id}/os-extra_specs",
        flavors.flavor_specs,
        schemas_nova.FlavorSpecs,
        rules=("os_compute_api:os-flavor-extra-specs:index",),
    ),
    get(
        "migrations",
        "/v2.1/os-migrations",
        migrations.migrations,
        schemas_nova.Migrations,
        query=schemas_nova.MigrationsQuery,
        rules=("os_compute_api:os-migrations:index",),
    ),
    get(
        "server_migrations",
        _MIGRATIONS,
        migrations.server_migrations,
        schemas_nova.Migrations,
        rules=("os_compute_api:servers:migrations:index",),
    ),
    get(
        "server_migration",
        f"{_MIGRATIONS}/{{migration_id}}",
        migrations.server_migration,
        schemas_nova.MigrationAnswer,
        rules=("os_compute_api:servers:migrations:show",),
    ),
    Route(
        name="server_migration_abort",
        method="DELETE",
        path=f"{_MIGRATIONS}/{{migration_id}}",
        handler=migrations.server_migration_abort,
        answers={202: None},
        rules=("os_compute_api:servers:migrations:delete",),
    ),
    Route(
        name="server_migration_action",
        method="POST",
        path=f"{_MIGRATIONS}/{{migration_id}}/action",
        handler=migrations.server_migration_action,
        body=schemas_nova.ForceCompleteBody,
        answers={202: None},
        rules=("os_compute_api:servers:migrations:force_complete",),
    ),
    get(
        "instance_actions",
        _ACTIONS,
        instance_actions.instance_actions,
        schemas_nova.InstanceActions,
        rules=("os_compute_api:os-instance-actions:list",),
    ),
    get(
        "instance_action",
        f"{_ACTIONS}/{{request_id}}",
        instance_actions.instance_action,
        schemas_nova.InstanceActionAnswer,
        rules=("os_compute_api:os-instance-actions:show",),
    ),
    Route(
        name="assisted_snapshot",
        method="POST",
        path="/v2.1/os-assisted-volume-snapshots",
        handler=cinder_events.assisted_snapshot,
        body=schemas_nova.AssistedSnapshotBody,
        answers={},
        rules=("os_compute_api:os-assisted-volume-snapshots:create",),
    ),
    Route(
        name="external_events",
        method="POST",
        path="/v2.1/os-server-external-events",
        handler=cinder_events.external_events,
        body=schemas_nova.ExternalEventsBody,
        answers={207: schemas_nova.ExternalEvents},
        rules=("os_compute_api:os-server-external-events:create",),
    ),
)

NOVA = (*_VERSIONS_AND_VOLUMES, *_SERVERS_AND_MORE)
