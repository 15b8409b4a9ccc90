"""The outputs of host steps: facts without secrets.

By verb: `attachment_update`: driver, target_digest, access_mode, connector_host (whose connector
Cinder got, if it got one); `attachment_create`: these and attachment_id; `attachment_delete`: ended
(unknown attachments that were deleted with it, each with its volume's id); `volume_connect`:
device_path, access_mode, disk; `disk_plug`: device_name, bus; `volume_disconnect`,
`connection_release`: shared (another server of this host still uses the connection); the undo of a
pivot: passed (the pivot has happened); verbs of whole guests: power_state; `drift_look`: shown.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from host_agent.shared.contract.wire import BYTES_MAX, Id, form

ENDED_MAX = 1_000
#: The limit of each list in HostHas.
SHOWN_MAX = 1_000
_HOSTS_OF_A_DISK_MAX = 64
_SETTINGS_MAX = 32

Device = Annotated[str, form("[a-z0-9]{1,32}")]
#: A path or a name of a disk; secrets of cephx and LUKS are only named.
DiskText = Annotated[str, form(r"[A-Za-z0-9_:.+/@=,\[\]-]{0,512}")]
#: Settings of a disk by libvirt's names (ports.Disk.iotune and blockio).
Tuning = Annotated[
    dict[Annotated[str, form("[a-z_]{1,32}")], Annotated[int, Meta(ge=0, le=BYTES_MAX)]],
    Meta(max_length=_SETTINGS_MAX),
]
#: A fact that may differ between two copies of a disk (disk_xml.DiskSeen.facts).
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
    """The source of a disk on a host (ports.Disk.source)."""

    type: DiskText
    path: DiskText
    protocol: DiskText
    name: DiskText
    format: DiskText
    discard: bool
    readonly: bool
    iotune: Tuning
    blockio: Tuning
    hosts: Annotated[list[list[DiskText]], Meta(max_length=_HOSTS_OF_A_DISK_MAX)]
    auth: Auth | None
    encryption: DiskEncryption | None


class ConnectedDisk(DiskSource, total=False):
    """A disk that another host has connected (Lane.disk)."""

    source: DiskSource


class HostHas(TypedDict):
    """What a host has of a volume and a server (verbs.drift.drift_look): evidence of a repair."""

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
    """The facts of a report; null means the same as a missing key."""

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
