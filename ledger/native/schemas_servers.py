"""/v1 as data: servers that are built, refreshed and converted."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from ledger.config import MEMORY_MB_MAX, MEMORY_MB_MIN, PAGE_ITEMS_MAX, VCPUS_MAX
from ledger.http.schemas import Asked, HostName, Id, Shown

#: S1's tags as Nova has them, on one line.
TAG = r"^[^,/\t\n\r]{1,60}$"
DISKS_MAX = 26  # of a server that is built; more can be attached
SIZE_GB_MAX = 1_000_000

HostPath = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9_.+@/-]{1,1023}$")]


class NoBody(Asked):
    """An empty object, or no body at all."""


class Firmware(StrEnum):
    BIOS = "bios"
    UEFI = "uefi"


def _firmware(value: Any) -> Any:
    return Firmware(value) if value in list(Firmware) else value


class VolumeWanted(Asked):
    """A volume that is made for the server; never a multi-attach one (S3)."""

    size_gb: Annotated[int, Field(ge=1, le=SIZE_GB_MAX)]
    name: Annotated[str, StringConstraints(max_length=255)] | None = None
    volume_type: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    snapshot_id: Id | None = None
    image_id: Id | None = None
    availability_zone: Annotated[str, StringConstraints(max_length=255)] | None = None


class DiskWanted(Asked):
    """Either a volume that exists, or one to create.  `boot_index` 0: the root."""

    volume_id: Id | None = None
    create: VolumeWanted | None = None
    boot_index: Annotated[int, Field(ge=0, le=63)] | None = None
    device: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    tag: Annotated[str, StringConstraints(pattern=TAG)] | None = None
    delete_on_termination: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.volume_id is None) == (self.create is None):
            raise ValueError("give either 'volume_id' or 'create'")
        return self


class Build(Asked):
    """`kernel` and `initrd` are paths on the host, for a guest that boots from no disk."""

    name: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,255}$")]
    vcpus: Annotated[int, Field(ge=1, le=VCPUS_MAX)] = 1
    memory_mb: Annotated[int, Field(ge=MEMORY_MB_MIN, le=MEMORY_MB_MAX)] = 512
    firmware: Annotated[Firmware, BeforeValidator(_firmware)] = Firmware.BIOS
    kernel: HostPath | None = None
    initrd: HostPath | None = None
    cmdline: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{0,2048}$")] | None = None
    disks: Annotated[list[DiskWanted], Field(max_length=DISKS_MAX, default_factory=list)]
    host: HostName | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for name in ("volume_id", "boot_index", "device", "tag"):
            given = [getattr(disk, name) for disk in self.disks]
            known = [value for value in given if value is not None]
            if len(set(known)) < len(known):
                raise ValueError(f"two disks have the same {name}")
        return self


class Many(Asked):
    """`host` None: the fleet.  `after`: the `next` of the page before."""

    host: HostName | None = None
    after: Id | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_ITEMS_MAX)] | None = None


class Started(Shown):
    """What was accepted: see the operation for what becomes of it."""

    server_id: UUID
    operation_id: UUID


class OneOfMany(Shown):
    """A server where it has begun, or was `refused`, and why."""

    server_id: UUID
    operation_id: UUID | None = None
    refused: str | None = None


class ManyBegun(Shown):
    servers: list[OneOfMany]
    next: UUID | None
