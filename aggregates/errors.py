"""Why a request is refused.  The docstring of a class is its message; its `code` is stable.

The caller can correct each of these errors, and each is a 4xx answer.  Where Nova has the same
case, `status` and text are Nova's: existing clients handle them, and people find the message
when they search for it.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class DomainError(Exception):
    """The ledger refused."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 409

    def __init_subclass__(cls, code: str | None = None, status: int | None = None) -> None:
        cls.code, cls.status = code or cls.code, status or cls.status

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        template = " ".join(inspect.cleandoc(type(self).__doc__ or "").split())
        super().__init__(template.format(**fields))


class IllegalTransitionError(DomainError, code="illegal_transition"):
    """{event} cannot happen to {id} in state {state}."""


class SecondHostError(IllegalTransitionError, code="second_host"):
    """Attachment {id} is {state} on host {host}; it cannot get the connector of host {other}
    before {host} has released the volume.
    """


class ForeignConnectorError(IllegalTransitionError, code="foreign_connector"):
    """Host {host} reported attachment {id} with the connector of host {connector_host}. An agent
    works for the host whose storage connector it has: correct the host name in the agent's
    configuration.
    """


class NoAttachmentIdError(IllegalTransitionError, code="no_attachment_id"):
    """The report for volume {volume_id} names no attachment id."""


class ClaimedError(DomainError, code="claimed"):
    """{what} {id} is claimed by operation {operation_id}; wait for it to finish, then try again."""


class BusyClaimError(ClaimedError):
    """{what} {id} is claimed by operation {operation_id} ({flow}, {state}); wait for it to
    finish, then try again.
    """


class ParkedClaimError(ClaimedError):
    """{what} {id} is claimed by operation {operation_id} ({flow}), which is parked: it does not
    continue until an operator decides ({choice}).
    """


class VmStateError(DomainError, code="vm_state"):
    """Cannot '{action}' instance {server_id} while it is in vm_state {vm_state}"""


class GuestNotThereError(DomainError, code="guest_missing"):
    """Cannot '{action}' instance {server_id}: its host {host} shows no guest of it. Rebuild
    the server and start it (hard reboot, if it is paused), or find out where its guest is (an
    operator: `drift list --server`).
    """


class DeletingError(DomainError, code="deleting"):
    """Cannot '{action}' instance {server_id} while it is in task_state deleting"""


class LockedError(DomainError, code="locked"):
    """Instance {server_id} is locked"""


class ObservedServerError(DomainError, code="observed_server"):
    """Server {server_id} belongs to {origin}. This ledger only observes it, and changes nothing
    there. Send the request to {origin}.
    """


class NotNovasRowError(DomainError, code="not_novas_row"):
    """It is no row of Nova's past: in the log {what}."""


class ObservedHostError(DomainError, code="observed_host"):
    """Host {host} belongs to {origin}. This ledger only observes it, and changes nothing there.
    Send the request to {origin}, and run no agent of the ledger on the host.
    """


class UnshownServerError(DomainError, code="unshown_server"):
    """Server {server_id} was adopted, and host {host} has not yet reported it with its volumes, so
    no operation may change it. Start the agent of that host; then look for differences with:
    drift run --server.
    """


class ChangedSinceError(DomainError, code="changed_since"):
    """Server {server_id} has changed since it was read, so it was not adopted. Try again."""


class NovaComputeRunsError(DomainError, code="nova_compute_runs"):
    """Nova reports that nova-compute on host {host} is up, was up within the last minute, or is
    forced down, which does not stop it. nova-compute and the agent must not both work there. Stop
    and mask nova-compute, and unset forced_down. The agent then registers again by itself.
    """


class NotObservedHostError(DomainError, code="not_observed_host"):
    """Host {host} is not a host of Nova's, so there is nothing to adopt. A look at Nova has to find
    servers on the host first.
    """


class NotAdoptedHostError(DomainError, code="not_adopted_host"):
    """Host {host} was not adopted, so it cannot be handed back."""


class HostUnaccountedError(DomainError, code="host_unaccounted"):
    """Host {host} is fenced, or has not reported since its last fence, or since a restore of the
    ledger, what it still holds of servers that run elsewhere. After it is handed back it cannot
    report this. Unfence it, or vouch for it, and run its agent until the host is up. Then stop the
    agent, and try again.
    """


class UnknownHostError(DomainError, code="host_forgotten", status=404):
    """Host {host} has been forgotten, and no agent of it has registered since."""


class HostInUseError(DomainError, code="host_in_use"):
    """Host {host} cannot be forgotten: {why}"""


class UnlockError(DomainError, code="forbidden", status=403):
    """Policy doesn't allow {rule} to be performed."""


class MetadataItemsError(DomainError, code="metadata_items", status=403):
    """Maximum number of metadata items exceeds {maximum}"""


class MetadataItemError(DomainError, code="no_metadata", status=404):
    """Metadata item was not found"""


class ServerTagError(DomainError, code="no_tag", status=404):
    """Server {server_id} has no tag '{tag}'"""


class ServerTagsError(DomainError, code="too_many_tags", status=400):
    """The number of tags exceeded the per-server limit {maximum}"""


class AlreadyAttachedError(DomainError, code="already_attached", status=400):
    """Invalid volume: volume {volume_id} already attached"""


class AttachedElsewhereError(DomainError, code="attached_elsewhere", status=400):
    """Invalid volume: volume {volume_id} is already attached to instances: {servers}"""


class NotAttachedError(DomainError, code="not_attached", status=404):
    """Instance {server_id} is not attached to volume {volume_id}"""


class RootDeviceError(DomainError, code="root_device", status=400):
    """Cannot detach a root device volume"""


class RootStateError(DomainError, code="root_state", status=403):
    """Can't {action} root device volume: instance {server_id} is {vm_state}, and a root
    volume is changed only while it is stopped or shelved_offloaded.
    """


class NoRootError(DomainError, code="no_root", status=403):
    """Can't {action} instance without a root device volume. Attach one by the root's device name:
    `openstack server add volume --device {device} {server_id} VOLUME`.
    """


class RootPlaceError(DomainError, code="root_place", status=400):
    """Instance {server_id} has no vacant place for a root device volume: {why}."""


class DevicePathError(DomainError, code="device_path", status=400):
    """The supplied device path ({device}) is invalid."""


class DeviceInUseError(DomainError, code="device_in_use"):
    """The supplied device path ({device}) is in use."""


class TooManyDevicesError(DomainError, code="too_many_devices", status=403):
    """The maximum allowed number of disk devices ({maximum}) to attach to a single
    instance has been exceeded.
    """


class MultiattachVersionError(DomainError, code="multiattach_version", status=400):
    """Multiattach volumes are only supported starting with compute API version 2.60."""


class MultiattachHostError(DomainError, code="multiattach_host", status=400):
    """Volume {volume_id} has 'multiattach' set, which is not supported for this instance."""


class MultiattachOffloadedError(DomainError, code="multiattach_offloaded", status=400):
    """Attaching multiattach volumes is not supported for shelved-offloaded instances."""


class MultiattachLegacyError(DomainError, code="multiattach_legacy"):
    """Multiattach volume support is not yet available: it needs Cinder 3.44 and agents of
    service version {needed} on all hosts.
    """


class TagOffloadedError(DomainError, code="tag_offloaded", status=400):
    """Tagged volume attachment is not supported for shelved-offloaded instances."""


class TagHostError(DomainError, code="tag_host", status=400):
    """Tagged volume attachment is not supported for this server instance."""


class HostUnavailableError(DomainError, code="host_unavailable"):
    """Service is unavailable at this time. No agent of host {host} has been in contact
    since {since}; start it, or fence the host if it is gone.
    """


class HostUnvouchedError(DomainError, code="host_unvouched"):
    """This ledger was restored from an older backup, and may not know what host {host} has. Until
    an operator vouches for that host, the ledger does nothing there, and starts, frees and
    deletes nothing on any host. Check the host, then run: attachment-ledger host vouch {host}. If
    it is gone for good, fence it.
    """


class HostNotFencedError(DomainError, code="host_not_fenced", status=400):
    """Compute service of {host} is still in use. Fence it first, with the evidence that
    nothing on it accesses volumes any more.
    """


class HookAwaitedError(DomainError, code="hook_awaited"):
    """Host {host} is fenced, but the program that runs after a fence (fencing.hook) has to succeed
    first. It has failed {failures} times, and is run again until it succeeds. The host's history
    has its output.
    """


class HostAwaitedError(DomainError, code="host_awaited"):
    """Host {host} was unfenced, and has not shown since what it holds: the guest may run there.
    Start its agent, or fence the host again.
    """


class OperatorsFenceError(DomainError, code="operators_fence"):
    """Host {host} was fenced by an operator, with separate evidence: a controller cannot end
    that fence. Unfence it by /v1 when it may work again.
    """


class FenceTooOldError(DomainError, code="fence_too_old"):
    """The fence of host {host} does not cover instance {server_id}, which arrived or started
    there after the fence. Check the host again, and fence it again with that evidence.
    """


class ShownElsewhereError(DomainError, code="shown_elsewhere"):
    """Server {server_id}: {flow} is refused, because its guest or volume is shown elsewhere:
    {signs}. It could cause a second writer on a volume, or free a volume that is in use. Remove
    the guest or disk there; if the host is gone for good, fence it. Then try again.
    """


class DestinationError(DomainError, code="destination", status=400):
    """No valid host was found. Host {host} cannot take instance {server_id}: {why}."""


class LocalDisksError(DomainError, code="local_disks"):
    """Instance {server_id} has disks that are not volumes ({disks}); they cannot leave their
    host with it.
    """


class BoundPortsError(DomainError, code="bound_ports"):
    """Instance {server_id} has network interfaces or devices that its Nova has given it on host
    {host}, and which do not go with it. Hand the host back to have Nova move it.
    """


class DefinitionError(DomainError, code="no_definition"):
    """The definition of instance {server_id} is not known: its host has not reported it."""


class NotMigratingError(DomainError, code="not_migrating"):
    """volume {volume_id} is not migrating; this API should only be called by Cinder"""


class VolumeBusyError(DomainError, code="volume_migrating"):
    """Volume {volume_id} is {status} in Cinder, so only Cinder itself may swap it."""


class VolumeStateError(DomainError, code="volume_state"):
    """Volume {volume_id} is {state} in Cinder, so this cannot be done now: {advice}."""


class AttachmentVolumeStateError(
    VolumeStateError, status=400
):  # as nova-api answers attach and detach
    """Invalid volume: volume {volume_id} is {state} in Cinder, so this cannot be done now:
    {advice}.
    """


class SwapError(DomainError, code="swap", status=400):
    """{why}"""


class SnapshotError(DomainError, code="no_snapshot_in_use", status=400):
    """{why}"""


class ReimageError(DomainError, code="no_reimage", status=400):
    """{why}"""


class NotBootableError(DomainError, code="not_bootable", status=400):
    """Block Device {volume_id} is not bootable."""


class NotLegacyError(DomainError, code="not_legacy", status=400):
    """Instance {server_id} has no volume attached by Cinder's old calls; nothing to convert."""


class HalfConvertedError(DomainError, code="half_converted"):
    """Instance {server_id} cannot be reverted: a conversion of its volumes was given up before
    its source {host} had attachments of its own. Convert it once more, then revert it.
    """


class StaleEpochError(DomainError, code="stale_epoch"):
    """Epoch {given} of host {host} is out of date, the current one is {current}. Register again."""


class StaleReportError(DomainError, code="stale_report"):
    """Operation {operation_id} expects no result of step {step} of run {run} from host {host}."""


class NoFindingError(DomainError, code="finding_not_found", status=404):
    """Finding {finding_id} could not be found."""


class RepairError(DomainError, code="repair"):
    """Finding {finding_id} is not repaired: {why}"""


class OperatorActError(DomainError, code="operator_act"):
    """Operation {operation_id} cannot {act}: {why}."""
