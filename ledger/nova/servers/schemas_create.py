"""POST /servers as data: the body of Nova's form, as far as it is done here.

What is refused, and why, is in `properties`; what is left after that check has these forms.
Numbers may be texts, as Nova takes them.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import StringConstraints as Text

from handlers.requests.edits import METADATA_MAX, TAGS_MAX
from ledger.http import microversions
from ledger.http.microversions import NETWORKS_REQUIRED, Version
from ledger.http.problem import ApiError
from ledger.http.schemas import Asked, HostName, Id, Shown
from ledger.native.schemas_servers import DISKS_MAX, SIZE_GB_MAX
from ledger.nova.schemas_nova import Device, Flag, LinkShown, Tag
from ledger.nova.servers import properties

_DIGITS_MAX = 9


def _number(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(rf"-?\d{{1,{_DIGITS_MAX}}}", value, re.ASCII):
        return int(value)
    return value


Name = Annotated[
    str, Text(pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{0,253}[^\s\x00-\x1f\x7f])?$")
]


MetadataKey = Annotated[str, Text(pattern=r"^[A-Za-z0-9_:. -]{1,255}$")]
MetadataValue = Annotated[str, Text(max_length=255, pattern=r"^[^\x00]*$")]
ServerTag = Annotated[str, Text(pattern=r"^[^,/\x00-\x1f\x7f]{1,60}$")]
Description = Annotated[str, Text(max_length=255, pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$")]


HostNames = {
    microversions.HOSTNAME: re.compile(r"[a-zA-Z0-9]+[a-zA-Z0-9-]{0,61}[a-zA-Z0-9]"),
    microversions.FULL_HOSTNAME: re.compile(r"[a-zA-Z0-9._-]{1,255}"),
}


def _address(kind: type[IPv4Address | IPv6Address]) -> BeforeValidator:
    """The usual way of writing an address; none is ""."""

    def usual(value: Any) -> Any:
        if value is None or value == "":
            return ""
        if not isinstance(value, str):
            return value
        try:
            return str(kind(value.replace("%", "no zones of links")))
        except ValueError:
            raise ValueError(f"{value[:100]!r} is no {kind.__name__}") from None

    return BeforeValidator(usual)


class ServerDetails(Asked):
    """What is kept of a server and shown, given to a new one or later."""

    name: Name
    description: Description | None = None
    accessIPv4: Annotated[str, _address(IPv4Address)] = ""  # noqa: N815 - Nova's names
    accessIPv6: Annotated[str, _address(IPv6Address)] = ""  # noqa: N815
    disk_config: Annotated[Literal["AUTO", "MANUAL"], Field(alias="OS-DCF:diskConfig")] = "MANUAL"
    hostname: str | None = None

    def kept(self, version: Version) -> dict[str, Any]:
        """As `aggregates.server.DEFAULT_DETAILS` has it, of what is given.  Raises ApiError 400."""
        if self.hostname is not None:
            form = HostNames[max(since for since in HostNames if since <= version)]
            if not form.fullmatch(self.hostname):
                raise ApiError(400, "invalid", f"Invalid hostname: {self.hostname[:100]!r}")
        named = {"accessIPv4": "access_ip_v4", "accessIPv6": "access_ip_v6"}
        given = [name for name in ServerDetails.model_fields if name in self.model_fields_set]
        return {named.get(name, name): getattr(self, name) for name in given}


class ServerUpdate(ServerDetails):
    name: Name = ""


class ServerUpdateBody(BaseModel):
    """`server`: what is to be kept of it from now on."""

    server: ServerUpdate


class BlockDevice(Asked):
    """One of `block_device_mapping_v2`; null and negative as a `boot_index`: not booted from."""

    source_type: Literal["volume", "snapshot", "image", "blank"]
    destination_type: Literal["volume", "local"] | None = None
    uuid: Id | None = None
    boot_index: Annotated[int | None, Field(ge=-(10**9), le=63), BeforeValidator(_number)] = None
    volume_size: Annotated[int, Field(ge=1, le=SIZE_GB_MAX), BeforeValidator(_number)] | None = None
    volume_type: Annotated[str, Text(min_length=1, max_length=255)] | None = None
    delete_on_termination: Flag = False
    device_name: Device | None = None
    disk_bus: Literal["virtio", "scsi"] | None = None
    tag: Tag | None = None


class WantedServer(ServerDetails):
    flavorRef: str | int  # noqa: N815 - Nova's name
    block_device_mapping_v2: Annotated[list[BlockDevice], Field(max_length=DISKS_MAX)] = Field([])
    availability_zone: Annotated[str, Text(max_length=255)] | None = None
    host: HostName | None = None
    hypervisor_hostname: HostName | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=METADATA_MAX)] = Field(
        default_factory=dict
    )
    tags: Annotated[list[ServerTag], Field(max_length=TAGS_MAX)] = Field(default_factory=list)


class CreateBody(BaseModel):
    """`server`: what is done of it.  Nova's other properties are taken if they say what is so
    anyway, and refused by name else.
    """

    model_config = ConfigDict(extra="allow")

    server: WantedServer


class Created(Shown):
    """Nova shows a password beside this; nobody sets one here."""

    id: str
    links: list[LinkShown]
    disk_config: Annotated[str, Field(alias="OS-DCF:diskConfig")]
    security_groups: list[dict[str, str]]


class CreatedAnswer(Shown):
    server: Created


def wanted(body: dict[str, Any], version: Version) -> WantedServer:
    """What a request wants done.  Raises ApiError 400, ValidationError."""
    server = properties.done(body, properties.BODY, version).get("server")
    if not isinstance(server, dict):
        raise ApiError(400, "invalid", "'server' is a required property")
    if "networks" not in server and version >= NETWORKS_REQUIRED:
        raise ApiError(400, "invalid", "'networks' is a required property")
    done = properties.done(server, properties.SERVER, version)
    disks = done.get("block_device_mapping_v2")
    if isinstance(disks, list):
        done["block_device_mapping_v2"] = [
            properties.done(disk, properties.DISK, version) if isinstance(disk, dict) else disk
            for disk in disks
        ]
    return WantedServer.model_validate(done, strict=True)


def update(body: dict[str, Any], version: Version) -> dict[str, Any]:
    """What is to be kept of a server from now on.  Raises ApiError 400, ValidationError."""
    server = body.get("server")
    if not isinstance(server, dict) or len(body) > 1:
        raise ApiError(400, "invalid", "'server' is a required property, and the only one")
    done = properties.done(server, properties.UPDATE, version)
    return ServerUpdate.model_validate(done, strict=True).kept(version)
