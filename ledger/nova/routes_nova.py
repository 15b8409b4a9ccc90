"""The routes of /v2.1: Nova's form."""

from __future__ import annotations

from ledger.http import versions
from ledger.http.route import IDEMPOTENT, Route, get, read
from ledger.nova import (
    cinder_events,
    compute_hosts,
    flavors,
    instance_actions,
    migrations,
    schemas_hosts,
    schemas_nova,
    volume_attachments,
)
from ledger.nova import parameters_nova as parameters
from ledger.nova.routes_servers import PARTS
from ledger.nova.servers import actions, schemas_actions, schemas_create, servers
from ledger.nova.servers import create as server_create
from ledger.nova.servers import parts as server_parts

_SERVERS = "/v2.1/servers"
_VOLUMES = "/v2.1/servers/{server_id}/os-volume_attachments"
_MIGRATIONS = "/v2.1/servers/{server_id}/migrations"
_ACTIONS = "/v2.1/servers/{server_id}/os-instance-actions"


_VERSIONS_AND_VOLUMES = (
    get("version", "/v2.1", versions.version, schemas_nova.VersionAnswer, rules=()),
    get("version", "/v2.1/", versions.version, schemas_nova.VersionAnswer, rules=()),
    read(
        "servers",
        _SERVERS,
        servers.servers,
        schemas_nova.Servers,
        parameters=parameters.SERVERS,
        of_both=True,
        rules=("os_compute_api:servers:index",),
    ),
    *(
        Route(
            name="server_create",
            method="POST",
            path=path,
            handler=server_create.server_create,
            body=schemas_create.CreateBody,
            answers={202: schemas_create.CreatedAnswer},
            headers=IDEMPOTENT,
            rules=(server_create.RULE,),
        )
        # Nova has it at the second, too: where gophercloud, until 2023, sent those with volumes.
        for path in (_SERVERS, "/v2.1/os-volumes_boot")
    ),
    read(
        "servers_detail",
        f"{_SERVERS}/detail",
        servers.servers_detail,
        schemas_nova.Servers,
        parameters=parameters.SERVERS,
        of_both=True,
        rules=("os_compute_api:servers:detail",),
    ),
    read(
        "server",
        f"{_SERVERS}/{{server_id}}",
        servers.server,
        schemas_nova.ServerAnswer,
        rules=("os_compute_api:servers:show",),
    ),
    read(
        "volume_attachments",
        _VOLUMES,
        volume_attachments.volume_attachments,
        schemas_nova.VolumeAttachments,
        parameters=parameters.VOLUME_ATTACHMENTS,
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
        gives_way=True,
        rules=("os_compute_api:os-volumes-attachments:create",),
    ),
    read(
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
        body=schemas_nova.AttachmentUpdateBody,
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
    read(
        "flavors",
        "/v2.1/flavors",
        flavors.flavors,
        schemas_nova.Flavors,
        parameters=parameters.FLAVORS,
        rules=("attachment-ledger:flavors:list",),
    ),
    read(
        "flavors_detail",
        "/v2.1/flavors/detail",
        flavors.flavors_detail,
        schemas_nova.Flavors,
        parameters=parameters.FLAVORS,
        rules=("attachment-ledger:flavors:list",),
    ),
    read(
        "flavor",
        "/v2.1/flavors/{flavor_id}",
        flavors.flavor,
        schemas_nova.FlavorAnswer,
        rules=("attachment-ledger:flavors:show",),
    ),
    read(
        "flavor_specs",
        "/v2.1/flavors/{flavor_id}/os-extra_specs",
        flavors.flavor_specs,
        schemas_nova.FlavorSpecs,
        rules=("os_compute_api:os-flavor-extra-specs:index",),
    ),
    read(
        "migrations",
        "/v2.1/os-migrations",
        migrations.migrations,
        schemas_nova.Migrations,
        parameters=parameters.MIGRATIONS,
        rules=("os_compute_api:os-migrations:index",),
    ),
    read(
        "server_migrations",
        _MIGRATIONS,
        migrations.server_migrations,
        schemas_nova.Migrations,
        rules=("os_compute_api:servers:migrations:index",),
    ),
    read(
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
    read(
        "instance_actions",
        _ACTIONS,
        instance_actions.instance_actions,
        schemas_nova.InstanceActions,
        parameters=parameters.INSTANCE_ACTIONS,
        rules=("os_compute_api:os-instance-actions:list",),
    ),
    read(
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
        answers={200: schemas_nova.AssistedSnapshotAnswer},
        rules=("os_compute_api:os-assisted-volume-snapshots:create",),
    ),
    Route(
        name="assisted_deletion",
        method="DELETE",
        path="/v2.1/os-assisted-volume-snapshots/{snapshot_id}",
        handler=cinder_events.assisted_deletion,
        parameters=parameters.SNAPSHOT_DELETION,
        answers={204: None},
        rules=("os_compute_api:os-assisted-volume-snapshots:delete",),
    ),
    Route(
        name="external_events",
        method="POST",
        path="/v2.1/os-server-external-events",
        handler=cinder_events.external_events,
        body=schemas_nova.ExternalEventsBody,
        answers={200: schemas_nova.ExternalEvents, 207: schemas_nova.ExternalEvents},
        rules=("os_compute_api:os-server-external-events:create",),
    ),
)

_HOSTS = (
    read(
        "services",
        "/v2.1/os-services",
        compute_hosts.services,
        schemas_hosts.Services,
        parameters=parameters.SERVICES,
        rules=("os_compute_api:os-services:list",),
    ),
    Route(
        name="service_update",
        method="PUT",
        path="/v2.1/os-services/{service_id}",
        handler=compute_hosts.service_update,
        body=schemas_hosts.ServiceUpdate,
        answers={200: schemas_hosts.ServiceAnswer},
        rules=("os_compute_api:os-services:update",),
    ),
    Route(
        name="service_delete",
        method="DELETE",
        path="/v2.1/os-services/{service_id}",
        handler=compute_hosts.service_delete,
        answers={204: None},
        rules=("os_compute_api:os-services:delete",),
    ),
    read(
        "hypervisors",
        "/v2.1/os-hypervisors",
        compute_hosts.hypervisors,
        schemas_hosts.Hypervisors,
        parameters=parameters.HYPERVISORS,
        rules=("os_compute_api:os-hypervisors:list",),
    ),
    read(
        "hypervisors_detail",
        "/v2.1/os-hypervisors/detail",
        compute_hosts.hypervisors_detail,
        schemas_hosts.Hypervisors,
        parameters=parameters.HYPERVISORS,
        rules=("os_compute_api:os-hypervisors:list-detail",),
    ),
    read(
        "hypervisor",
        "/v2.1/os-hypervisors/{hypervisor_id}",
        compute_hosts.hypervisor,
        schemas_hosts.HypervisorAnswer,
        parameters=parameters.HYPERVISOR,
        rules=("os_compute_api:os-hypervisors:show",),
    ),
    read(
        "aggregates",
        "/v2.1/os-aggregates",
        compute_hosts.aggregates,
        schemas_hosts.Aggregates,
        rules=("os_compute_api:os-aggregates:index",),
    ),
    read(
        "zones",
        "/v2.1/os-availability-zone",
        compute_hosts.zones,
        schemas_hosts.Zones,
        rules=("os_compute_api:os-availability-zone:list",),
    ),
    read(
        "zones_detail",
        "/v2.1/os-availability-zone/detail",
        compute_hosts.zones_detail,
        schemas_hosts.Zones,
        rules=("os_compute_api:os-availability-zone:detail",),
    ),
)

_READ_ONLY = (
    read(
        "limits",
        "/v2.1/limits",
        server_parts.limits,
        schemas_hosts.LimitsAnswer,
        parameters=parameters.LIMITS,
        rules=("os_compute_api:limits",),
    ),
    read(
        "extensions",
        "/v2.1/extensions",
        server_parts.extensions,
        schemas_hosts.Extensions,
        rules=("os_compute_api:extensions",),
    ),
    read(
        "extension",
        "/v2.1/extensions/{alias}",
        server_parts.extension,
        schemas_hosts.ExtensionAnswer,
        rules=("os_compute_api:extensions",),
    ),
)

NOVA = (*_VERSIONS_AND_VOLUMES, *_SERVERS_AND_MORE, *PARTS, *_HOSTS, *_READ_ONLY)
