"""POST and PUT of servers as data: what Nova knows of one, and what becomes of each property.

The rule is that of query parameters (`ledger.http.parameters`): *a property is done, or refused by
name, and never ignored*.  Whoever gets a server without the key, the address or the password that
was asked for finds out when nobody can log in.  Clients also send what they do not mean: of a
property that is refused, the values that say what is so anyway are `accepted`.  What Nova knows is
said in its JSON schemas of servers (nova/api/openstack/compute/schemas).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger.http import microversions as v
from ledger.http.problem import ApiError, unexpected
from ledger.nova.schemas_nova import FALSE

#: What a request may leave empty without meaning anything.
EMPTY: tuple[Any, ...] = (None, "", [], {})
NO = (*EMPTY, False, *FALSE)


@dataclass(frozen=True, kw_only=True)
class Property:
    """`says`: what it means, or, of one that is refused, why, and what to do instead.

    `accepted`: the values of one that is refused that say what is so anyway; None: it is done.
    `since` and `until` (None: still): the first microversion that knows it, and the first that
    does not any more.
    """

    name: str
    says: str
    accepted: tuple[Any, ...] | None = None
    since: v.Version = v.MIN
    until: v.Version | None = None

    def known(self, version: v.Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)


Properties = tuple[Property, ...]


def _of(says: str, *names: str, **more: Any) -> Properties:
    """Properties of one meaning."""
    return tuple(Property(name=name, says=says, **more) for name in names)


def done(given: Mapping[str, Any], known: Properties, version: v.Version) -> dict[str, Any]:
    """Of what is given, that which is to be done.  ApiError 400 for what is not known, or is
    refused.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        found = next((each for each in known if each.name == name and each.known(version)), None)
        if found is None:
            raise ApiError(400, "invalid", unexpected(name))
        if found.accepted is None:
            kept[name] = value
        elif value not in found.accepted:
            raise refused(name, found.says)
    return kept


def refused(name: str, why: str) -> ApiError:
    """What is not done here, and what to do instead."""
    return ApiError(400, "not_supported", f"Property '{name}' is not supported: {why}.")


#: Of the body, beside Nova's `server`.
BODY: Properties = (
    *_of("the server", "server"),
    *_of(
        "the ledger chooses the host by its number of guests; name a host in "
        "`availability_zone` or `host`",
        *("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"),
        accepted=EMPTY,
    ),
)

_NO_NETWORKS = "the ledger has no networks: leave it out"
_NOT_INSIDE = (
    "the ledger changes nothing inside a guest and has no metadata service: put it into the volume"
)

#: What is kept of a server and shown, given to a new one or later.
_KEPT: Properties = (
    *_of("1 to 255 characters, no space at either end; guests are not renamed", "name"),
    *_of("stored and shown, up to 255 characters", "description", since=v.DESCRIPTION),
    *_of(
        "stored and shown; the ledger does not use the address; empty: none",
        "accessIPv4",
        "accessIPv6",
    ),
    *_of(
        "stored and shown as `AUTO` or `MANUAL`, without effect: partitions are the volume's",
        "OS-DCF:diskConfig",
    ),
    *_of("stored and shown; the guest sets its own name", "hostname", since=v.HOSTNAME),
)

SERVER: Properties = (
    *_of(
        "a size, as `c2.m2048`: 2 vCPUs, 2048 MiB; or the id of one of the settings' `[[flavors]]`",
        "flavorRef",
    ),
    *_of("its disks, all of them volumes; one has `boot_index` 0", "block_device_mapping_v2"),
    *_of(
        "`nova`; `nova:HOST` and `:HOST` name a host, where the policy allows it",
        "availability_zone",
    ),
    *_of(
        "a host, where the policy allows it", "host", "hypervisor_hostname", since=v.HOST_REQUESTED
    ),
    *_of(
        "disks are volumes here: leave it empty, and give the image in `block_device_mapping_v2` "
        "(`source_type` image, `destination_type` volume, `volume_size`; openstack: "
        "`--boot-from-volume`)",
        "imageRef",
        accepted=EMPTY,
    ),
    *_of(
        "a form from before 2013: use `block_device_mapping_v2`",
        "block_device_mapping",
        accepted=EMPTY,
    ),
    *_of(_NO_NETWORKS, "networks", accepted=EMPTY, until=v.NETWORKS_REQUIRED),
    *_of(
        "the ledger has no networks: use `none`, or `auto`, which finds none",
        "networks",
        accepted=("none", "auto", []),
        since=v.NETWORKS_REQUIRED,
    ),
    *_of(
        f"{_NO_NETWORKS}; only `default` is accepted",
        "security_groups",
        accepted=(None, [], [{"name": "default"}]),
    ),
    *_KEPT,
    *_of(
        "a request creates one server: send one request for each",
        "min_count",
        "max_count",
        accepted=(1, "1"),
    ),
    *_of(
        "a request creates one server, and has no id of its own",
        "return_reservation_id",
        accepted=NO,
    ),
    *_of(_NOT_INSIDE, "key_name", "user_data", "adminPass", accepted=EMPTY),
    *_of(_NOT_INSIDE, "personality", accepted=EMPTY, until=v.WITHOUT_PERSONALITY),
    *_of("a guest has volumes and no other drives", "config_drive", accepted=NO),
    *_of("stored and shown, 128 at most; the guest does not get it", "metadata"),
    *_of(
        "stored and shown, lists can be filtered by them; 50 at most", "tags", since=v.TAGS_OF_NEW
    ),
    *_of(
        "Cinder creates volumes from images and checks no certificates",
        "trusted_image_certificates",
        accepted=EMPTY,
        since=v.TRUSTED_CERTIFICATES,
    ),
)

#: Of what is changed.
UPDATE: Properties = (
    *_KEPT,
    *_of(
        "there is one zone, and no server is pinned to it",
        "pinned_availability_zone",
        accepted=EMPTY,
        since=v.PINNED_ZONE,
    ),
)

_BY_UUID = "use `uuid` and `source_type`"

#: Of each of `block_device_mapping_v2`.
DISK: Properties = (
    *_of("`volume`, `snapshot`, `image` or `blank`", "source_type"),
    *_of("the id of that volume, snapshot or image", "uuid"),
    *_of("`volume`; there are no others", "destination_type"),
    *_of("0 is the root; -1 and null are not booted from", "boot_index"),
    *_of("in GiB, of a new volume; default for a snapshot: its size", "volume_size"),
    *_of("the type of a new volume", "volume_type", since=v.VOLUME_TYPE),
    *_of("whether the volume is deleted with the server", "delete_on_termination"),
    *_of("`/dev/vdX` or `/dev/sdX`; default: the next free one", "device_name"),
    *_of("`virtio` (the default) or `scsi`", "disk_bus"),
    *_of(
        "the guest identifies the disk by it", "tag", since=v.TAG_OF_DISK, until=v.TAG_OF_DISK_LOST
    ),
    *_of("the guest identifies the disk by it", "tag", since=v.TAG_OF_DISK_AGAIN),
    *_of("a volume is a disk", "device_type", accepted=(*EMPTY, "disk")),
    *_of("it is for local disks, and there are none", "guest_format", accepted=EMPTY),
    *_of("images have no disks of their own that could be left out", "no_device", accepted=NO),
    *_of(_BY_UUID, "volume_id", "snapshot_id", "image_id", accepted=EMPTY),
    *_of("Cinder provides it", "connection_info", accepted=EMPTY),
    *_of("it is for local disks, and there are none", "virtual_name", accepted=EMPTY),
)

TABLES: dict[str, Properties] = {
    "body": BODY,
    "server": SERVER,
    "block_device_mapping_v2": DISK,
    "update": UPDATE,
}
