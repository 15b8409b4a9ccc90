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

#: For one volume of a server; each is the function of its name.
VERBS: dict[Verb, Callable[[RunContext, Lane], dict[str, Any]]] = {
    verb: vars(file)[verb]
    for file in (cinder, disk, drift, snapshots)
    for verb in Verb
    if verb in vars(file)
}
#: For a whole server.
GUEST_VERBS: dict[Verb, Callable[[RunContext, GuestOrder], dict[str, Any]]] = {
    verb: vars(guest)[verb] for verb in Verb if verb in vars(guest)
}
