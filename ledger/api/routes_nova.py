"""The routes of /v2.1: Nova's form."""

from __future__ import annotations

from typing import Any

from ledger.api import (
    actions,
    cinder_events,
    compute_hosts,
    flavors,
    instance_actions,
    migrations,
    schemas_actions,
    schemas_hosts,
    schemas_nova,
    server_parts,
    servers,
    versions,
    volume_attachments,
)
from ledger.api import parameters_nova as parameters
from ledger.api.parameters import Parameters
from ledger.api.route import IDEMPOTENT, Route, get

_SERVERS = "/v2.1/servers"
_VOLUMES = "/v2.1/servers/{server_id}/os-volume_attachments"
_MIGRATIONS = "/v2.1/servers/{server_id}/migrations"
_ACTIONS = "/v2.1/servers/{server_id}/os-instance-actions"


def _read(name: str, path: str, handler: Any, answer: Any, parameters: Parameters = ()) -> Route:
    """A route that reads, and takes these query parameters and no others."""
    return get(name, path, handler, answer, parameters=parameters)


_VERSIONS_AND_VOLUMES = (
    get("version", "/v2.1", versions.version, schemas_nova.VersionAnswer),
    get("version", "/v2.1/", versions.version, schemas_nova.VersionAnswer),
    _read(
        "servers", _SERVERS, servers.servers, schemas_nova.Servers, parameters=parameters.SERVERS
    ),
    _read(
        "servers_detail",
        f"{_SERVERS}/detail",
        servers.servers_detail,
        schemas_nova.Servers,
        parameters=parameters.SERVERS,
    ),
    _read("server", f"{_SERVERS}/{{server_id}}", servers.server, schemas_nova.ServerAnswer),
    _read(
        "volume_attachments",
        _VOLUMES,
        volume_attachments.volume_attachments,
        schemas_nova.VolumeAttachments,
        parameters=parameters.VOLUME_ATTACHMENTS,
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
    _read(
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
    _read(
        "flavors",
        "/v2.1/flavors",
        flavors.flavors,
        schemas_nova.Flavors,
        parameters=parameters.FLAVORS,
    ),
    _read(
        "flavors_detail",
        "/v2.1/flavors/detail",
        flavors.flavors_detail,
        schemas_nova.Flavors,
        parameters=parameters.FLAVORS,
    ),
    _read("flavor", "/v2.1/flavors/{flavor_id}", flavors.flavor, schemas_nova.FlavorAnswer),
    _read(
        "flavor_specs",
        "/v2.1/flavors/{flavor_id}/os-extra_specs",
        flavors.flavor_specs,
        schemas_nova.FlavorSpecs,
    ),
    _read(
        "migrations",
        "/v2.1/os-migrations",
        migrations.migrations,
        schemas_nova.Migrations,
        parameters=parameters.MIGRATIONS,
    ),
    _read("server_migrations", _MIGRATIONS, migrations.server_migrations, schemas_nova.Migrations),
    _read(
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
    _read(
        "instance_actions",
        _ACTIONS,
        instance_actions.instance_actions,
        schemas_nova.InstanceActions,
        parameters=parameters.INSTANCE_ACTIONS,
    ),
    _read(
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

_HOSTS = (
    _read(
        "services",
        "/v2.1/os-services",
        compute_hosts.services,
        schemas_hosts.Services,
        parameters=parameters.SERVICES,
    ),
    Route(
        name="service_update",
        method="PUT",
        path="/v2.1/os-services/{service_id}",
        handler=compute_hosts.service_update,
        body=schemas_hosts.ServiceUpdate,
        answers={200: schemas_hosts.ServiceAnswer},
    ),
    _read(
        "hypervisors",
        "/v2.1/os-hypervisors",
        compute_hosts.hypervisors,
        schemas_hosts.Hypervisors,
        parameters=parameters.HYPERVISORS,
    ),
    _read(
        "hypervisors_detail",
        "/v2.1/os-hypervisors/detail",
        compute_hosts.hypervisors_detail,
        schemas_hosts.Hypervisors,
        parameters=parameters.HYPERVISORS,
    ),
    _read(
        "hypervisor",
        "/v2.1/os-hypervisors/{hypervisor_id}",
        compute_hosts.hypervisor,
        schemas_hosts.HypervisorAnswer,
        parameters=parameters.HYPERVISOR,
    ),
    _read("aggregates", "/v2.1/os-aggregates", compute_hosts.aggregates, schemas_hosts.Aggregates),
    _read("zones", "/v2.1/os-availability-zone", compute_hosts.zones, schemas_hosts.Zones),
    _read(
        "zones_detail",
        "/v2.1/os-availability-zone/detail",
        compute_hosts.zones_detail,
        schemas_hosts.Zones,
    ),
)

_READ_ONLY = (
    _read(
        "metadata",
        f"{_SERVERS}/{{server_id}}/metadata",
        server_parts.metadata,
        schemas_hosts.Metadata,
    ),
    _read(
        "metadata_item",
        f"{_SERVERS}/{{server_id}}/metadata/{{key}}",
        server_parts.metadata_item,
        schemas_hosts.MetadataItem,
    ),
    _read("tags", f"{_SERVERS}/{{server_id}}/tags", server_parts.tags, schemas_hosts.Tags),
    _read(
        "limits",
        "/v2.1/limits",
        server_parts.limits,
        schemas_hosts.LimitsAnswer,
        parameters=parameters.LIMITS,
    ),
    _read("extensions", "/v2.1/extensions", server_parts.extensions, schemas_hosts.Extensions),
    _read(
        "extension",
        "/v2.1/extensions/{alias}",
        server_parts.extension,
        schemas_hosts.ExtensionAnswer,
    ),
)

NOVA = (*_VERSIONS_AND_VOLUMES, *_SERVERS_AND_MORE, *_HOSTS, *_READ_ONLY)
