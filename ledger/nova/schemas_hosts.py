"""Hosts, zones and limits in Nova's form, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints as Text

from ledger.http.schemas import Asked, HostName, Shown
from ledger.nova.schemas_nova import Anything, Flag, LinkShown

DisabledReason = Annotated[str, Text(min_length=1, max_length=255, strip_whitespace=True)]


class ServiceUpdate(Asked):
    """PUT /os-services/{id} from 2.53 on."""

    status: Literal["enabled", "disabled"] | None = None
    disabled_reason: DisabledReason | None = None
    forced_down: Flag | None = None


class ServiceNamed(Asked):
    """PUT /os-services/{action} up to 2.52."""

    host: HostName
    binary: Annotated[str, Text(min_length=1, max_length=255)]
    disabled_reason: DisabledReason | None = None
    forced_down: Flag | None = None


# ------------------------------------------------------------------------------ answers


class Services(Shown):
    services: list[Anything]


class ServiceAnswer(Shown):
    service: Anything


class Hypervisors(Shown):
    hypervisors: list[Anything]
    hypervisors_links: list[LinkShown] | None = None


class HypervisorAnswer(Shown):
    hypervisor: Anything


class Zones(Shown):
    availabilityZoneInfo: list[Anything]  # noqa: N815 - Nova's names


class Aggregates(Shown):
    aggregates: list[Anything]


class LimitsAnswer(Shown):
    limits: Anything


class Extensions(Shown):
    extensions: list[Anything]


class ExtensionAnswer(Shown):
    extension: Anything


class Metadata(Shown):
    metadata: dict[str, str]


class Addresses(Shown):
    addresses: dict[str, Anything]


class MetadataItem(Shown):
    meta: dict[str, str]


class Tags(Shown):
    tags: list[str]
