"""The outputs of a step that a host reports: facts that are no secrets.

Which verb says what: `attachment_update`: driver, target_digest, access_mode, connector_host (whose
connector Cinder was given, if it was); `attachment_create`: these and attachment_id;
`attachment_delete`: ended, others that nobody knew and that went with it, their ids with the
volume's; `volume_connect`: device_path, access_mode, disk; `disk_plug`: device_name, bus;
`volume_disconnect`, `connection_release`: shared (another server of this host still uses the
connection); the undo of a pivot: passed (it is too late, it has happened); what is done with a
whole guest: power_state; `drift_look`: shown.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from host_agent.shared.contract.wire import Id, form

ENDED_MAX = 1_000
#: Of each list in what a host has of one volume and one server.
SHOWN_MAX = 1_000
_HOSTS_OF_A_DISK_MAX = 64

Device = Annotated[str, form("[a-z0-9]{1,32}")]
#: Of a disk: a path, a name.  cephx's and LUKS's secrets are only named.
DiskText = Annotated[str, form(r"[A-Za-z0-9_:.+/@=,\[\]-]{0,512}")]
#: In which two copies of a disk may differ (disk_xml.DiskSeen.facts).
Fact = Annotated[str, form("[A-Za-z0-9_ .-]{1,64}")]
Power = Literal["running", "paused", "shutdown", "crashed", "nostate"]


class Auth(TypedDict, total=False):
    """The name of the hypervisor's secret for a network disk."""

    user: DiskText | None
    secret_uuid: DiskText | None


class DiskEncryption(TypedDict, total=False):
    """The name of the hypervisor's secret that opens a disk."""

    format: DiskText | None
    secret_uuid: DiskText | None


class DiskSource(TypedDict, total=False):
    """Where a disk's data is, as a host sees it (ports.Disk.source)."""

    type: DiskText
    path: DiskText
    protocol: DiskText
    name: DiskText
    format: DiskText
    discard: bool
    readonly: bool
    hosts: Annotated[list[list[DiskText]], Meta(max_length=_HOSTS_OF_A_DISK_MAX)]
    auth: Auth | None
    encryption: DiskEncryption | None


class ConnectedDisk(DiskSource, total=False):
    """What a host needs to know of a disk that another host has connected, and its source."""

    source: DiskSource


class HostHas(TypedDict):
    """What it has of a volume and a server (verbs.drift.drift_look): a repair may delete by it."""

    power_state: Power | None
    process: NotRequired[bool]  # older agents do not say
    running: bool
    live: Device | None
    persistent: Device | None
    differs: Annotated[list[Fact], Meta(max_length=SHOWN_MAX)]
    readonly_live: NotRequired[bool | None]
    readonly_persistent: NotRequired[bool | None]
    guests: Annotated[list[Id], Meta(max_length=SHOWN_MAX)]
    unexplained: Annotated[list[Id], Meta(max_length=SHOWN_MAX)]
    record: bool
    elsewhere: bool
    records: Annotated[dict[Id, Id], Meta(max_length=SHOWN_MAX)]


class Outputs(TypedDict, total=False):
    """Facts that a report says; null is as good as not said."""

    driver: Annotated[str, form("[A-Za-z0-9_.+-]{1,64}")] | None
    target_digest: Annotated[str, form("[A-Za-z0-9_:.+/=-]{1,128}")] | None
    device_path: Annotated[str, form("[A-Za-z0-9_:.+/@=,-]{1,512}")] | None
    device_name: Device | None
    connector_host: Annotated[str, form("[A-Za-z0-9_.-]{1,255}")] | None
    access_mode: Literal["ro", "rw"] | None
    bus: Annotated[str, form("[a-z0-9]{1,16}")] | None
    shared: bool
    passed: bool
    attachment_id: Id | None
    power_state: Power | None
    ended: Annotated[dict[Id, Id], Meta(max_length=ENDED_MAX)] | None
    disk: ConnectedDisk | None
    shown: HostHas | None
