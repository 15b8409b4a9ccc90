"""What a process is at, as SIGUSR2 shows it beside its stacks: leases, queues, open calls.

Of memory alone, without a lock: it is asked for when something hangs (shared.platform.process).
"""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from host_agent.shared.platform.lines import open_calls
from ledger.core.dispatcher import Dispatcher
from ledger.http.components import COMPONENTS, HOLDS
from ledger.http.limits.bulkheads import BULKHEADS
from ledger.http.limits.connections import CONNECTIONS


def state_of(app: web.Application, dispatcher: Dispatcher | None) -> Iterator[str]:
    """Lines for people; without a dispatcher, of a process that only reads."""
    cinder, holds = app[BULKHEADS].cinder, app[HOLDS]
    yield from dispatcher.state() if dispatcher else ()
    yield app[COMPONENTS].writer.state()
    yield f"Requests: {app[CONNECTIONS].under_way} of tokens under way, {holds.count} held open"
    yield f"Requests that ask Cinder: {cinder.inside} under way, {cinder.waiting} wait"
    yield from open_calls()
