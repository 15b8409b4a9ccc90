"""Why a request is refused.  The docstring is the message; `code` is stable.

Every error here is the caller's to mend and maps to a 4xx answer.  `status` and
the texts are Nova's where Nova has the case, so that existing clients, and the
people who search for a message, find what they know.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class DomainError(Exception):
    """The ledger refused."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 409

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        template = " ".join(inspect.cleandoc(type(self).__doc__ or "").split())
        super().__init__(template.format(**fields))


class IllegalTransitionError(DomainError):
    """{event} cannot happen to {id} in state {state}."""

    code = "illegal_transition"


class SecondHostError(IllegalTransitionError):
    """Attachment {id} is {state} on host {host}; it cannot get the connector of host {other}
    before {host} has released the volume.
    """

    code = "second_host"


class ForeignConnectorError(IllegalTransitionError):
    """Host {host} gave attachment {id} the connector of host {connector_host}. An agent speaks for
    the host whose storage connector it has: see which host its configuration names.
    """

    code = "foreign_connector"


class NoAttachmentIdError(IllegalTransitionError):
    """The report for volume {volume_id} names no attachment id."""

    code = "no_attachment_id"


class ClaimedError(DomainError):
    """{what} {id} is claimed by operation {operation_id}; wait for it to finish, then try again."""

    code = "claimed"


class BusyClaimError(ClaimedError):
    """{what} {id} is claimed by operation {operation_id} ({flow}, {state}); wait for it to
    finish, then try again.
    """


class ParkedClaimError(ClaimedError):
    """{what} {id} is claimed by operation {operation_id} ({flow}), which is parked: it does not
    go on before an operator has decided what to do about it ({choice}).
    """


class VmStateError(DomainError):
    """Cannot '{action}' instance {server_id} while it is in vm_state {vm_state}"""

    code = "vm_state"


class GuestNotThereError(DomainError):
    """Cannot '{action}' instance {server_id}: its host {host} shows no guest of it, so there is
    nothing to do that to. Rebuild the server and start it (reboot it hard, if it is paused), or
    see what has become of its guest (an operator: `drift list --server`).
    """

    code = "guest_missing"


class DeletingError(DomainError):
    """Cannot '{action}' instance {server_id} while it is in task_state deleting"""

    code = "deleting"


class LockedError(DomainError):
    """Instance {server_id} is locked"""

    code = "locked"


class ObservedServerError(DomainError):
    """Server {server_id} is {origin}'s: this ledger watches it, and changes nothing there. Ask
    {origin} for it.
    """

    code = "observed_server"


class ObservedHostError(DomainError):
    """Host {host} is {origin}'s: this ledger watches it, and changes nothing there. Ask {origin}
    for it, and run no agent of the ledger there.
    """

    code = "observed_host"


class UnlockError(DomainError):
    """Policy doesn't allow {rule} to be performed."""

    code = "forbidden"
    status = 403


class MetadataItemsError(DomainError):
    """Maximum number of metadata items exceeds {maximum}"""

    code = "metadata_items"
    status = 403


class MetadataItemError(DomainError):
    """Metadata item was not found"""

    code = "no_metadata"
    status = 404


class ServerTagError(DomainError):
    """Server {server_id} has no tag '{tag}'"""

    code = "no_tag"
    status = 404


class ServerTagsError(DomainError):
    """The number of tags exceeded the per-server limit {maximum}"""

    code = "too_many_tags"
    status = 400


class AlreadyAttachedError(DomainError):
    """Invalid volume: volume {volume_id} already attached"""

    code = "already_attached"
    status = 400


class AttachedElsewhereError(DomainError):
    """Invalid volume: volume {volume_id} is already attached to instances: {servers}"""

    code = "attached_elsewhere"
    status = 400


class NotAttachedError(DomainError):
    """Instance {server_id} is not attached to volume {volume_id}"""

    code = "not_attached"
    status = 404


class RootDeviceError(DomainError):
    """Cannot detach a root device volume"""

    code = "root_device"
    status = 400


class RootStateError(DomainError):
    """Can't {action} root device volume: instance {server_id} is {vm_state}, and a root
    volume is changed only while it is stopped or shelved_offloaded.
    """

    code = "root_state"
    status = 403


class NoRootError(DomainError):
    """Can't {action} instance without a root device volume. Attach one by the root's device name:
    `openstack server add volume --device {device} {server_id} VOLUME`.
    """

    code = "no_root"
    status = 403


class RootPlaceError(DomainError):
    """Instance {server_id} has no vacant place for a root device volume: {why}."""

    code = "root_place"
    status = 400


class DevicePathError(DomainError):
    """The supplied device path ({device}) is invalid."""

    code = "device_path"
    status = 400


class DeviceInUseError(DomainError):
    """The supplied device path ({device}) is in use."""

    code = "device_in_use"


class TooManyDevicesError(DomainError):
    """The maximum allowed number of disk devices ({maximum}) to attach to a single
    instance has been exceeded.
    """

    code = "too_many_devices"
    status = 403


class MultiattachVersionError(DomainError):
    """Multiattach volumes are only supported starting with compute API version 2.60."""

    code = "multiattach_version"
    status = 400


class MultiattachHostError(DomainError):
    """Volume {volume_id} has 'multiattach' set, which is not supported for this instance."""

    code = "multiattach_host"
    status = 400


class MultiattachOffloadedError(DomainError):
    """Attaching multiattach volumes is not supported for shelved-offloaded instances."""

    code = "multiattach_offloaded"
    status = 400


class MultiattachLegacyError(DomainError):
    """Multiattach volume support is not yet available: it needs Cinder 3.44 and agents of
    service version {needed} on all hosts.
    """

    code = "multiattach_legacy"


class TagOffloadedError(DomainError):
    """Tagged volume attachment is not supported for shelved-offloaded instances."""

    code = "tag_offloaded"
    status = 400


class TagHostError(DomainError):
    """Tagged volume attachment is not supported for this server instance."""

    code = "tag_host"
    status = 400


class HostUnavailableError(DomainError):
    """Service is unavailable at this time. No agent of host {host} has been in contact
    since {since}; start it, or fence the host if it is gone.
    """

    code = "host_unavailable"


class HostNotFencedError(DomainError):
    """Compute service of {host} is still in use. Fence it first, with the evidence that
    nothing on it touches volumes any more.
    """

    code = "host_not_fenced"
    status = 400


class FenceTooOldError(DomainError):
    """The fence of host {host} does not cover instance {server_id}, which arrived or started
    there after the fence. Check the host again, and fence it again with that evidence.
    """

    code = "fence_too_old"


class ShownElsewhereError(DomainError):
    """Server {server_id}: {flow} is refused, for others show what it works on: {signs}. It could
    make a second writer, or free what is in use. Remove the guest or disk there; if the host is
    gone for good, fence it. Then try again.
    """

    code = "shown_elsewhere"


class DestinationError(DomainError):
    """No valid host was found. Host {host} cannot take instance {server_id}: {why}."""

    code = "destination"
    status = 400


class LocalDisksError(DomainError):
    """Instance {server_id} has disks that are not volumes ({disks}); they cannot leave their
    host with it.
    """

    code = "local_disks"


class DefinitionError(DomainError):
    """The definition of instance {server_id} is not known: its host has not reported it."""

    code = "no_definition"


class NotMigratingError(DomainError):
    """volume {volume_id} is not migrating; this API should only be called by Cinder"""

    code = "not_migrating"


class VolumeBusyError(DomainError):
    """Volume {volume_id} is {status} in Cinder, so only Cinder itself may swap it."""

    code = "volume_migrating"


class VolumeStateError(DomainError):
    """Volume {volume_id} is {state} in Cinder, so this cannot be done now: {advice}."""

    code = "volume_state"


class AttachmentVolumeStateError(VolumeStateError):
    """Invalid volume: volume {volume_id} is {state} in Cinder, so this cannot be done now:
    {advice}.
    """

    status = 400  # as nova-api answers attach and detach


class SwapError(DomainError):
    """{why}"""

    code = "swap"
    status = 400


class SnapshotError(DomainError):
    """{why}"""

    code = "no_snapshot_in_use"
    status = 400


class ReimageError(DomainError):
    """{why}"""

    code = "no_reimage"
    status = 400


class NotBootableError(DomainError):
    """Block Device {volume_id} is not bootable."""

    code = "not_bootable"
    status = 400


class NotLegacyError(DomainError):
    """Instance {server_id} has no volume attached by Cinder's old calls; nothing to convert."""

    code = "not_legacy"
    status = 400


class HalfConvertedError(DomainError):
    """Instance {server_id} cannot be reverted: a conversion of its volumes was given up before
    its source {host} had attachments of its own. Convert it once more, then revert it.
    """

    code = "half_converted"


class StaleEpochError(DomainError):
    """Epoch {given} of host {host} is out of date, the current one is {current}. Register again."""

    code = "stale_epoch"


class StaleReportError(DomainError):
    """Operation {operation_id} expects no result of step {step} of run {run} from host {host}."""

    code = "stale_report"


class NoFindingError(DomainError):
    """Finding {finding_id} could not be found."""

    code = "finding_not_found"
    status = 404


class RepairError(DomainError):
    """Finding {finding_id} is not repaired: {why}"""

    code = "repair"


class OperatorActError(DomainError):
    """Operation {operation_id} cannot {act}: {why}."""

    code = "operator_act"
