"""What all requests that begin an operation share: waiting, idempotency, headers.

`ledger.core.requests` accepts a request.  This module waits a little for an operation in the way,
makes repeated requests safe by a key, and puts the operation's address into the headers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from aggregates.errors import ClaimedError, ShownElsewhereError
from aggregates.operation import OperationState, Outcome
from handlers.flows import FLOWS
from handlers.requests.actions import ActOnServer
from handlers.requests.guards import NEW_FLOW_VERSION, Contact
from host_agent.shared.contract.ports import PortError, VolumeView
from ledger.agents.contact import contact_at, contact_of
from ledger.core.requests import Accepted, Fleet, operation_id_of
from ledger.core.wakeups import bound_key, ended_key
from ledger.http import redaction
from ledger.http.call import WRITTEN, Call, late, projected
from ledger.http.components import Components
from ledger.http.problem import ApiError, not_found
from ledger.http.redaction import redacted

#: How long a request waits for an operation in its way before it is refused (409).
CLAIM_WAIT_S = 2.0
#: How long a DELETE of an attachment waits.  Nova shows by a volume's `detaching` when it is too
#: early, which is not said here; so clients do not expect a 409, and repeat nothing.  But many, and
#: proxies, give a request up after a minute.
DELETE_WAIT_S = 30.0

#: How long a page of many goes on to begin.  The last one may wait twice as long for Cinder, and
#: proxies give a request up after a minute.
PAGE_S = 20.0

_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}\Z")
_log = structlog.get_logger(__name__)

Row = dict[str, Any]
T = TypeVar("T")
W = TypeVar("W")


def idempotency_key(call: Call) -> str | None:
    """The key that makes repeating this request safe, if it has one."""
    key = call.request.headers.get("Idempotency-Key")
    if key is not None and not _IDEMPOTENCY_KEY.match(key):
        message = "Idempotency-Key: must be 1 to 255 visible ASCII characters"
        raise ApiError(400, "idempotency_key", message)
    return key


async def earlier(call: Call) -> Row | None:
    """The operation that a request with the same key began, if it did."""
    key = idempotency_key(call)
    if key is None:
        return None
    operation_id = operation_id_of(call.context(), key)
    return await call.components.queries.operation(str(operation_id))


def fleet_of(components: Components, loop: asyncio.AbstractEventLoop) -> Fleet:
    """What is known of hosts just now: all are asked by the worker thread that decides."""

    def contact(name: str) -> Contact:
        return asyncio.run_coroutine_threadsafe(contact_of(components, name), loop).result()

    def answer(asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asked, loop).result()

    async def as_logged(ask: Callable[[], Awaitable[T]]) -> T:
        """From tables that have all that is decided on: the log had it first."""
        await projected(components, (await components.inner.head())["position"])
        return await ask()

    queries = components.queries
    return Fleet(
        contact=contact,
        had=lambda server_id: answer(as_logged(partial(queries.hosts_of_server, server_id))),
        shown=lambda server_id, volume_ids: answer(queries.sightings(server_id, volume_ids)),
        unaccounted=lambda server_id: answer(
            as_logged(partial(_unaccounted, components, server_id))
        ),
        unfenced=lambda: answer(as_logged(queries.unfenced)),
        hook_required=components.settings.fencing.hook_required,
    )


async def _unaccounted(components: Components, server_id: str) -> list[str]:
    """The hosts that may have a guest that its own has lost; they are asked, for the next try."""
    hosts = await components.queries.unaccounted(server_id)
    if hosts:
        silent_after_s = components.settings.host_down_after_s
        await components.queries.want_surveys(hosts, silent_after_s=silent_after_s)
    return hosts


async def fleet(call: Call, server: Row | None = None, *, attaches: bool = False) -> Fleet:
    """What is known of hosts just now; `attaches`: the request makes new attachments.

    Of the host of `server` that was read with it, and judged when it was: whoever decides may
    have waited for Cinder since, which is no silence of the host's.  Others can be asked about.
    S1: "only use the new API when all nova-compute nodes have been upgraded", those that are
    silent just now, too; a host that is gone for good is fenced, and counts no more.
    """
    components = call.components
    known = fleet_of(components, asyncio.get_running_loop())
    old = attaches and await components.queries.older_agents(NEW_FLOW_VERSION)

    read = contact_at(components, server["host_seen_at"]) if server is not None else None

    def contact(name: str) -> Contact:
        if read is not None and server is not None and name == server["host"]:
            return read
        return known.contact(name)

    def legacy() -> bool:
        return attaches and (old or not components.cinder.new_flow())

    return replace(known, contact=contact, legacy=legacy)


def asks_cinder(flow: str) -> bool:
    """Whether the flow is accepted only for volumes that are in certain states (decision 0040)."""
    return FLOWS[flow].volumes is not None


async def accepted(
    call: Call,
    ask: Callable[[], Accepted],
    *,
    asks_cinder: bool = False,
    wait_s: float | None = None,
) -> Accepted:
    """Have the request accepted; while operations are in its way, once more when each ends.

    Cinder says `in-use`, or `available`, a moment before our operation is over: a client
    that waits for that and asks at once must not be told that it comes too early.  Returns
    when all of it can be read.  `asks_cinder`: what is asked before it is accepted; it has to
    be said, for Cinder may hang.  `wait_s`: for all of them together; CLAIM_WAIT_S.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (CLAIM_WAIT_S if wait_s is None else wait_s)
    waited_for = set[str]()
    while True:
        try:
            done = await (call.ask_cinder(ask) if asks_cinder else call.bulkheads.users(ask))
        except ClaimedError as claimed:
            operation_id = claimed.fields["operation_id"]
            left_s = deadline - loop.time()
            if operation_id in waited_for or not await _ends_or_parks(call, operation_id, left_s):
                raise
            waited_for.add(operation_id)
        else:
            await call.written(done.position)
            return done


async def begun(call: Call, request: ActOnServer) -> dict[str, str]:
    """Have the request accepted; the headers that name its operation."""
    key, context, known = idempotency_key(call), call.context(), await fleet(call)
    done = await accepted(
        call,
        lambda: call.components.requests.act(request, context, known, key),
        asks_cinder=asks_cinder(request.flow),
    )
    return headers(done.operation_id)


async def each(things: Iterable[W], begin: Callable[[W], Awaitable[T]]) -> list[T]:
    """What `begin` makes of these, up to one at which Cinder does not answer: the page ends there,
    so that what was begun is told, and the next one says why.  Raises that if it is the first.
    It also ends after PAGE_S.
    """
    done: list[T] = []
    end = time.monotonic() + PAGE_S
    for thing in things:
        if done and time.monotonic() > end:
            break
        try:
            done.append(await begin(thing))
        except (ApiError, PortError):
            if not done:
                raise
            break
    return done


async def _ends_or_parks(call: Call, operation_id: str, wait_s: float) -> bool:
    """Whether the operation ends or parks within that time: who asks again is then told more."""

    async def look() -> bool | None:
        row = await call.components.queries.operation(operation_id, named=False)
        return (row is not None and row["state"] != OperationState.RUNNING) or None

    return await call.until(ended_key(operation_id), look, wait_s) is not None


def refuse_foreign_volume(call: Call, volume_id: str) -> VolumeView | None:
    """We ask Cinder as a service that sees all volumes, so their project is ours to check.

    Returns the volume, if Cinder had to be asked.  Blocks.
    """
    if call.identity.everywhere:
        return None
    view = call.components.cinder.volume(volume_id)
    if view.project_id is None:
        _log.warning("volume_without_project", volume=volume_id)
    if not call.identity.sees(view.project_id):
        raise not_found("not_found", f"Volume {volume_id} could not be found.")
    return view


async def bound(call: Call, done: Accepted, wait_s: float) -> Row:
    """The operation, once its volumes are reserved and bound, or it is over, or at the deadline.

    The answer's position is then one behind which a standby shows that, too.
    """
    read = partial(call.components.queries.operation, done.operation_id, named=False)

    async def look() -> Row | None:
        row = await read()
        settled = row is not None and (row["bound"] or row["state"] != OperationState.RUNNING)
        return row if settled else None

    row = await call.until(bound_key(done.operation_id), look, wait_s)
    row = row or await read()
    if row is None:  # repeated, and accepted just now by a process whose projections are late
        raise late()
    call.request[WRITTEN] = (await call.components.queries.head())["position"]
    return row


def refuse_failed(call: Call, row: Row) -> None:
    """Raises what went wrong, if the operation is over without success."""
    parked = row["state"] == OperationState.PARKED
    if parked or (row["state"] == OperationState.FINISHED and row["outcome"] != Outcome.COMPLETED):
        raise _failed(call, row)


#: Where a failed attach is no fault of ours; everything else is a 500.
_STATUS_OF_FAILURE = {
    "refused": HTTPStatus.BAD_REQUEST,
    "not_found": HTTPStatus.NOT_FOUND,
    "forbidden": HTTPStatus.FORBIDDEN,
    "cancelled": HTTPStatus.CONFLICT,
    "host_fenced": HTTPStatus.CONFLICT,
    ShownElsewhereError.code: HTTPStatus.CONFLICT,
    **dict.fromkeys(
        ("cinder_unavailable", "cinder_timeout", "cinder_error", "rate_limited"),
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
}


def _failed(call: Call, row: Row) -> ApiError:
    """The first error of the operation as an answer; Cinder's refusals in Cinder's words."""
    shown = redacted(call.identity, redaction.operation, row)
    error = shown["error"] or {"code": "cancelled", "message": "The operation was cancelled."}
    status = _STATUS_OF_FAILURE.get(error["code"], HTTPStatus.INTERNAL_SERVER_ERROR)
    operation_id = str(row["operation_id"])
    return ApiError(
        status, error["code"], error["message"], operation=operation_id, **headers(operation_id)
    )


def headers(operation_id: str) -> dict[str, str]:
    """Where the operation can be followed."""
    path = f"/v1/operations/{operation_id}"
    return {"X-Attachment-Ledger-Operation": path, "Link": f'<{path}>; rel="monitor"'}
