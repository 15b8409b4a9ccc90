"""The verbs a host runs; each is idempotent: check, act, verify.

A verb may be called when nothing, half or all of it is done already: after a crash, a timeout, or a
lost report.  It looks first, does what is missing, and looks again.  So it is always safe to run a
verb after an unknown outcome, and a second run of a finished verb changes nothing.

Verbs raise only PortError; the ledger decides what it means for the flow.  The one exception is
`Stopping`, which the clock and the watch raise while the agent shuts down: the run is dropped
without a report, and the ledger sends it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import GuestOrder, Verb
from host_agent.verbs import cinder, disk, drift, guest, snapshots
from host_agent.verbs.context import RunContext

#: For one volume of a server; a verb is the function of its name.
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
