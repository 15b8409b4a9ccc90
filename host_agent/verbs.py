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

from host_agent import verbs_cinder, verbs_disk, verbs_guest
from host_agent.context import Context
from host_agent.contract import GuestOrder, Lane, Verb

#: For one volume of a server.
VERBS: dict[Verb, Callable[[Context, Lane], dict[str, Any]]] = {
    Verb.ATTACHMENT_CREATE: verbs_cinder.attachment_create,
    Verb.ATTACHMENT_UPDATE: verbs_cinder.attachment_update,
    Verb.ATTACHMENT_REFRESH: verbs_cinder.attachment_refresh,
    Verb.ATTACHMENT_CONVERT: verbs_cinder.attachment_convert,
    Verb.ATTACHMENT_COMPLETE: verbs_cinder.attachment_complete,
    Verb.ATTACHMENT_DELETE: verbs_cinder.attachment_delete,
    Verb.VOLUME_WAIT_READY: verbs_cinder.volume_wait_ready,
    Verb.VOLUME_CONNECT: verbs_disk.volume_connect,
    Verb.VOLUME_DISCONNECT: verbs_disk.volume_disconnect,
    Verb.DISK_PLUG: verbs_disk.disk_plug,
    Verb.DISK_UNPLUG: verbs_disk.disk_unplug,
    Verb.DISK_REPLACE: verbs_disk.disk_replace,
    Verb.DISK_COPY: verbs_disk.disk_copy,
    Verb.DISK_COPY_ABORT: verbs_disk.disk_copy_abort,
}

#: For a whole server.
GUEST_VERBS: dict[Verb, Callable[[Context, GuestOrder], dict[str, Any]]] = {
    Verb.GUEST_SPAWN: verbs_guest.guest_spawn,
    Verb.GUEST_START: verbs_guest.guest_start,
    Verb.GUEST_STOP: verbs_guest.guest_stop,
    Verb.GUEST_PAUSE: verbs_guest.guest_pause,
    Verb.GUEST_RESUME: verbs_guest.guest_resume,
    Verb.GUEST_REMOVE: verbs_guest.guest_remove,
    Verb.GUEST_MIGRATE: verbs_guest.guest_migrate,
    Verb.GUEST_STAY: verbs_guest.guest_stay,
}
