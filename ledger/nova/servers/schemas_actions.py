"""Server actions as data: Nova's bodies, by microversion.

A body has one key, the action's name.  What Nova lets a caller say and has no meaning here
(where disks are that are no volumes, the scheduler's force, zones) is taken and ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import StringConstraints as Text

from ledger.http import microversions
from ledger.http.problem import ApiError, unexpected
from ledger.http.schemas import Asked, HostName
from ledger.nova.schemas_nova import Flag

Zone = Annotated[str, Text(max_length=255)]


class MigrateLive(Asked):
    host: HostName | None
    block_migration: Flag | Literal["auto"]
    disk_over_commit: Flag = False
    force: Flag = False


class Migrate(Asked):
    host: HostName | None = None


class Resize(Asked):
    flavorRef: Annotated[str | int, Field()]  # noqa: N815 - Nova's names
    disk_config: Annotated[Literal["AUTO", "MANUAL"] | None, Field(alias="OS-DCF:diskConfig")] = (
        None
    )


class Evacuate(Asked):
    host: HostName | None = None
    onSharedStorage: Flag | None = None  # noqa: N815
    adminPass: Annotated[str, Text(max_length=255)] | None = None  # noqa: N815
    force: Flag = False


class Unshelve(Asked):
    availability_zone: Zone | None = None
    host: HostName | None = None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class Reboot(Asked):
    type: Annotated[Literal["SOFT", "HARD"], BeforeValidator(_upper)]


class Rebuild(Asked):
    """`imageRef`: nothing, as a server shows its image, or what its root is to get (2.93)."""

    imageRef: str | None  # noqa: N815


class Lock(Asked):
    locked_reason: Annotated[str, Text(min_length=1, max_length=255)] | None = None


class ResetState(Asked):
    state: Literal["active", "error"]


class ActionBody(BaseModel):
    """One key: os-migrateLive, migrate, resize, confirmResize, revertResize, evacuate, shelve,
    shelveOffload, unshelve, os-start, os-stop, pause, unpause, reboot, rebuild, lock, unlock or
    os-resetState.
    """

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"minProperties": 1, "maxProperties": 1}
    )


#: The microversions that know a key: from the first, until before the second.
_KNOWN: dict[type[Asked], dict[str, tuple[int, int]]] = {
    MigrateLive: {"disk_over_commit": (1, 25), "force": (30, 68)},
    Migrate: {"host": (56, 1000)},
    Evacuate: {"onSharedStorage": (1, 14), "force": (29, 68)},
    Unshelve: {"availability_zone": (77, 1000), "host": (91, 1000)},
    Lock: {"locked_reason": (73, 1000)},
}
#: What older microversions demand.
_DEMANDED: dict[type[Asked], dict[str, int]] = {
    MigrateLive: {"disk_over_commit": 25},
    Evacuate: {"onSharedStorage": 14},
}


def refuse_unknown(body: Asked, version: microversions.Version) -> None:
    """Raises ApiError 400 for a key that this microversion does not know, or wants."""
    given = body.model_fields_set
    for name, (since, until) in _KNOWN.get(type(body), {}).items():
        if name in given and not since <= version[1] < until:
            raise ApiError(400, "invalid", unexpected(name))
    for name, until in _DEMANDED.get(type(body), {}).items():
        if name not in given and version[1] < until:
            raise ApiError(400, "invalid", f"'{name}' is a required property")
