"""The verbs a host runs, each an *ensure*: probe, act, verify.

A verb may be called when nothing, half or all of it has happened before: after a
crash, a time-out, or a report that got lost.  It looks first, does what is missing,
and looks again.  So running a verb after an unknown outcome is always right, and a
second run of a finished one changes nothing.

Verbs raise PortError only; what it means for the flow is the ledger's business.  The
one exception is `Stopping`, raised by the clock and the watch while the agent shuts
down: the run is dropped without a report, and the ledger hands it out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import GuestOrder, Verb
from host_agent.verbs import cinder, disk, drift, guest, snapshots
from host_agent.verbs.context import RunContext

#: For one volume of a server.
VERBS: dict[Verb, Callable[[RunContext, Lane], dict[str, Any]]] = {
    Verb.ATTACHMENT_CREATE: cinder.attachment_create,
    Verb.ATTACHMENT_UPDATE: cinder.attachment_update,
    Verb.ATTACHMENT_REFRESH: cinder.attachment_refresh,
    Verb.ATTACHMENT_CONVERT: cinder.attachment_convert,
    Verb.ATTACHMENT_COMPLETE: cinder.attachment_complete,
    Verb.ATTACHMENT_DELETE: cinder.attachment_delete,
    Verb.VOLUME_WAIT_READY: cinder.volume_wait_ready,
    Verb.VOLUME_CONNECT: disk.volume_connect,
    Verb.VOLUME_DISCONNECT: disk.volume_disconnect,
    Verb.DISK_PLUG: disk.disk_plug,
    Verb.DISK_UNPLUG: disk.disk_unplug,
    Verb.DISK_REPLACE: disk.disk_replace,
    Verb.DISK_GROW: disk.disk_grow,
    Verb.DISK_COPY: disk.disk_copy,
    Verb.DISK_COPY_ABORT: disk.disk_copy_abort,
    Verb.DISK_SNAPSHOT: snapshots.disk_snapshot,
    Verb.DISK_SNAPSHOT_REVERT: snapshots.disk_snapshot_revert,
    Verb.DISK_FOLLOW: snapshots.disk_follow,
    Verb.DISK_MERGE: snapshots.disk_merge,
    Verb.DISK_MERGE_ABORT: snapshots.disk_merge_abort,
    Verb.DRIFT_LOOK: drift.drift_look,
    Verb.DISK_VERIFY: drift.disk_verify,
    Verb.CONNECTION_RELEASE: drift.connection_release,
    Verb.SECRET_DROP: drift.secret_drop,
}

#: For a whole server.
GUEST_VERBS: dict[Verb, Callable[[RunContext, GuestOrder], dict[str, Any]]] = {
    Verb.GUEST_SPAWN: guest.guest_spawn,
    Verb.GUEST_START: guest.guest_start,
    Verb.GUEST_STOP: guest.guest_stop,
    Verb.GUEST_PAUSE: guest.guest_pause,
    Verb.GUEST_RESUME: guest.guest_resume,
    Verb.GUEST_REMOVE: guest.guest_remove,
    Verb.GUEST_MIGRATE: guest.guest_migrate,
    Verb.GUEST_STAY: guest.guest_stay,
    Verb.GUEST_FIND: guest.guest_find,
}
