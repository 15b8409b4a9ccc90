"""/v2.1 as data: bodies by microversion, and the forms of answers for the OpenAPI document.

Which keys a body may have grows with the microversion (Nova's REST API version history);
what an answer holds is decided in `volume_attachments.py`, so fields are optional here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import StringConstraints as Text

from ledger.http import microversions
from ledger.http.problem import ApiError, unexpected
from ledger.http.schemas import Asked, Id, Shown
from ledger.native.schemas_servers import TAG

Number = Annotated[int, Field(ge=0, le=999_999_999)]
Device = Annotated[str, Text(min_length=1, max_length=255)]
Tag = Annotated[str, Text(min_length=1, max_length=60, pattern=TAG)]


def _boolean(value: Any) -> Any:
    """Nova takes these spellings (its schema's "boolean")."""
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    return value


TRUE = ("True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes", "y", "t")
FALSE = ("False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no", "n", "f")
_BOOLEANS = dict.fromkeys(TRUE, True) | dict.fromkeys(FALSE, False)

Flag = Annotated[bool, BeforeValidator(_boolean)]


class Attach(Asked):
    volumeId: Id  # noqa: N815 - Nova's names
    device: Device | None = None
    tag: Tag | None = None
    delete_on_termination: Flag = False
    is_root: Flag = False


class AttachmentUpdate(Asked):
    volumeId: Id  # noqa: N815
    id: Id | None = None
    serverId: Id | None = None  # noqa: N815
    device: Device | None = None
    tag: Tag | None = None
    delete_on_termination: Flag | None = None


class AttachBody(Asked):
    """POST os-volume_attachments.

    `tag` from 2.49, `delete_on_termination` from 2.79, `is_root` from 2.105.
    """

    volumeAttachment: Attach  # noqa: N815


class AttachmentUpdateBody(Asked):
    """PUT os-volume_attachments; below 2.85 it knows `volumeId` alone."""

    volumeAttachment: AttachmentUpdate  # noqa: N815


#: The microversion a key of a body came with, where it is not 2.1.
_SINCE: dict[type[BaseModel], dict[str, microversions.Version]] = {
    Attach: {
        "tag": microversions.TAG_REQUEST,
        "delete_on_termination": microversions.DELETE_ON_TERMINATION,
        "is_root": microversions.ROOT_VOLUMES,
    },
    AttachmentUpdate: dict.fromkeys(
        ("id", "serverId", "device", "tag", "delete_on_termination"), microversions.UPDATE
    ),
}


def refuse_newer(body: Attach | AttachmentUpdate, version: microversions.Version) -> None:
    """Raises ApiError 400 for a key that this microversion does not know."""
    for name, since in _SINCE[type(body)].items():
        if name in body.model_fields_set and version < since:
            raise ApiError(400, "invalid", unexpected(name))


#: A bare name, of a file beside others on a share.
FileName = Annotated[str, Text(max_length=255, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:+@-]*$")]


class SnapshotFile(Asked):
    """The file that Cinder has made.  `id` is given back."""

    snapshot_id: Id
    type: Literal["qcow2"]
    new_file: FileName
    id: Annotated[str, Text(max_length=255)] | None = None


class AssistedSnapshot(Asked):
    volume_id: Id
    create_info: SnapshotFile


class AssistedSnapshotBody(Asked):
    """POST os-assisted-volume-snapshots."""

    snapshot: AssistedSnapshot


class SnapshotDeletion(Asked):
    """What `delete_info` is the JSON of: the files of the volume, as ports.Merge has them."""

    volume_id: Id
    type: Literal["qcow2"]
    file_to_merge: FileName | None
    merge_target_file: FileName | None


class SnapshotTaken(Shown):
    id: str | None
    volumeId: str  # noqa: N815 - Nova's


class AssistedSnapshotAnswer(Shown):
    snapshot: SnapshotTaken


class ExternalEvent(Asked):
    name: Annotated[str, Text(max_length=255)]
    server_uuid: Id
    status: Literal["failed", "completed", "in-progress"] = "completed"
    tag: Annotated[str, Text(max_length=255)] | None = None


class ExternalEventsBody(Asked):
    events: Annotated[list[ExternalEvent], Field(min_length=1, max_length=1000)]


class ForceCompleteBody(Asked):
    """POST servers/{id}/migrations/{id}/action."""

    force_complete: None


# ------------------------------------------------------------------------------ answers


class LinkShown(Shown):
    rel: str
    href: str


class NovaError(BaseModel):
    """One key, by code: badRequest, unauthorized, forbidden, itemNotFound, ..."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, NovaFault]


class NovaFault(Shown):
    code: int
    message: str


class VolumeAttachment(Shown):
    """`id` up to 2.88; `tag` from 2.70, `delete_on_termination` 2.79, the ids 2.89,
    `boot_index` 2.105.
    """

    id: str | None = None
    volumeId: str  # noqa: N815
    serverId: str  # noqa: N815
    device: str | None = None
    tag: str | None = None
    delete_on_termination: bool | None = None
    attachment_id: str | None = None
    bdm_uuid: str | None = None
    boot_index: int | None = None


class VolumeAttachmentAnswer(Shown):
    volumeAttachment: VolumeAttachment  # noqa: N815


class VolumeAttachments(Shown):
    volumeAttachments: list[VolumeAttachment]  # noqa: N815


class Server(BaseModel):
    """As Nova shows it at the microversion asked for."""

    model_config = ConfigDict(extra="allow")

    id: str
    name: str
    links: list[LinkShown]
    status: str | None = None


class ServerAnswer(Shown):
    server: Server


class Servers(Shown):
    servers: list[Server]
    servers_links: list[LinkShown] | None = None


class Anything(BaseModel):
    """As Nova shows it at the microversion asked for."""

    model_config = ConfigDict(extra="allow")


class Flavors(Shown):
    flavors: list[Anything]
    flavors_links: list[LinkShown] | None = None


class FlavorAnswer(Shown):
    flavor: Anything


class FlavorSpecs(Shown):
    extra_specs: dict[str, str]


class Migrations(Shown):
    migrations: list[Anything]
    migrations_links: list[LinkShown] | None = None


class MigrationAnswer(Shown):
    migration: Anything


class InstanceActions(Shown):
    instanceActions: list[Anything]  # noqa: N815
    links: list[LinkShown] | None = None


class InstanceActionAnswer(Shown):
    instanceAction: Anything  # noqa: N815


class ExternalEvents(Shown):
    events: list[Anything]


class EvacuateAnswer(Shown):
    """Below 2.14; above, and for most actions, there is no body."""

    adminPass: str | None  # noqa: N815


class ApiVersion(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    status: str
    version: str
    min_version: str
    links: list[LinkShown]


class VersionAnswer(Shown):
    version: ApiVersion


class Versions(Shown):
    versions: list[ApiVersion]
