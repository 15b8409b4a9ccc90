"""The log over HTTP: the history of one thing, all events by page, and the live feed.

Positions have no gaps and are in commit order, so a reader that goes on after the last
position it saw misses nothing, on whichever process it asks.  The feed is server-sent
events: `id` is the position, so that a browser resumes by itself (Last-Event-ID).
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import structlog
from aiohttp import web

from ledger.core.wakeups import ANY_EVENT
from ledger.http import redaction
from ledger.http.call import (
    Call,
    answer,
    late,
    refuse_detached,
    refuse_to_come,
    refuse_unknowable,
)
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.http.redaction import redacted
from ledger.native.attachments import attachment_row
from ledger.native.log.cloud_events import BATCH_MEDIA_TYPE, batch, preferred
from ledger.native.log.cloud_events import MEDIA_TYPE as CLOUD_EVENT
from ledger.native.log.feed import FEED
from ledger.native.log.schemas_events import CheckpointShown, Events, EventShown
from ledger.native.operations import operation_row
from ledger.native.schemas import EventsQuery, HistoryQuery, Order, PositionsQuery, StreamQuery
from ledger.native.server_row import named_server, server_row
from projections.reads.log import Subject
from projections.running.detached import DetachedError

#: A comment is sent this often when nothing happens, so that dead connections are found.
HEARTBEAT_S = 15.0
#: A reader that does not take what it is sent for so long is let go; it can resume.
SEND_S_MAX = 30.0

#: The same address has more than one form.
_VARY = {"Vary": "Accept"}

_log = structlog.get_logger(__name__)

Row = dict[str, Any]


# ----------------------------------------------------------------------------- history


async def volume_history(call: Call) -> web.StreamResponse:
    """GET /v1/volumes/{id}/history."""
    return await _history(call, "volume_id", call.id("volume_id", "Nothing is known of volume {}."))


async def server_history(call: Call) -> web.StreamResponse:
    """GET /v1/servers/{id}/history."""
    server_id = named_server(call)
    # Of a server that ended before the ledger observed its Nova there are events alone.
    if not call.identity.everywhere or await call.components.queries.instance(server_id):
        await server_row(call, deleted=True)
    return await _history(call, "server_id", server_id)


async def attachment_history(call: Call) -> web.StreamResponse:
    """GET /v1/attachments/{id}/history."""
    attachment_id = str((await attachment_row(call))["attachment_id"])
    return await _history(call, "attachment_id", attachment_id)


async def operation_history(call: Call) -> web.StreamResponse:
    """GET /v1/operations/{id}/history."""
    operation_id = str((await operation_row(call))["operation_id"])
    return await _history(call, "operation_id", operation_id)


async def host_history(call: Call) -> web.StreamResponse:
    """GET /v1/hosts/{host}/history."""
    return await _history(call, "host", call.host())


async def _history(call: Call, subject: Subject, name: str) -> web.StreamResponse:
    """What is known of it; 404 if nothing is, or was at the moment that is asked for."""
    query, queries = call.query(HistoryQuery), call.components.queries
    await refuse_unknowable(call, query.at, query.known_at)
    limit, about = page_limit(call, query.limit), (subject, name)
    as_of: dict[str, Any] = {"at": query.at, "known_at": query.known_at}
    rows = await queries.events(about, **as_of, limit=limit, **_asked_for(query))
    if not rows and not await queries.events(about, **as_of, limit=1):
        what, then = subject.removesuffix("_id"), "" if query.at is None else " at that moment"
        raise not_found(f"{what}_not_found", f"Nothing is known of {what} {name}{then}.")
    rows = [redacted(call.identity, redaction.event, row) for row in rows]
    return answer(_page(rows, limit, await queries.detached_to()))


def _asked_for(query: PositionsQuery) -> dict[str, Any]:
    """Which positions, and from which end: `after` and `before` are in the order asked for."""
    newest_first = query.order is Order.NEWEST
    after, before = query.after, query.before
    if newest_first:
        after, before = before, after
    return {"after": after or 0, "before": before, "newest_first": newest_first}


async def events(call: Call) -> web.StreamResponse:
    """GET /v1/events: a page of the whole log, or of the events of one topic."""
    query = call.query(EventsQuery)
    if query.at is not None:
        await refuse_to_come(call, query.at)
    page = await _page_of(call, query, page_limit(call, query.limit))
    if _preferred(call, "application/json", BATCH_MEDIA_TYPE) == BATCH_MEDIA_TYPE:
        return await _as_batch(call, page)
    return answer(page, headers=_VARY)


async def _page_of(call: Call, query: EventsQuery, limit: int) -> Events:
    asked = {"at": query.at, "limit": limit, **_asked_for(query)}
    if query.topic is None:
        page = _page(await _following(call, **asked), limit)
    else:
        queries = call.components.queries
        rows, following = await queries.events_of_topic(query.topic, **asked)
        page = _shown(rows, following, await queries.detached_to())
    if not page.events and query.order is not Order.NEWEST:
        await _refuse_beyond(call, query.after or 0)
    return page


async def _as_batch(call: Call, page: Events) -> web.Response:
    """The page as a batch of CloudEvents, which has no place for `next`: a Link (RFC 8288) has."""
    headers = dict(_VARY)
    if page.next is not None:
        following = call.request.rel_url.update_query(after=page.next)
        headers["Link"] = f'<{following}>; rel="next"'
    events = page.events
    body = batch(await call.request.app[FEED].log(), events) if events else b"[]"
    return web.Response(body=body, content_type=BATCH_MEDIA_TYPE, headers=headers)


def _preferred(call: Call, *offered: str) -> str:
    return preferred(",".join(call.request.headers.getall("Accept", ())), offered)


async def event_checkpoint(call: Call) -> web.StreamResponse:
    """GET /v1/events/checkpoint: what an auditor writes down."""
    row = await call.components.queries.checkpoint()
    return answer(CheckpointShown.model_validate({**row, "chain": row["chain"].hex()}))


async def _following(call: Call, **asked: Any) -> list[Row]:
    """The next events of the log; ApiError 410 rather than passing some over."""
    with refuse_detached():
        return await call.components.queries.events(**asked)


async def _refuse_beyond(call: Call, after: int) -> None:
    """ApiError 410 for a position that this log has never come to: who waits there would hear
    nothing until it has, and miss what comes before.  A standby may come to it yet: 503.
    """
    head = int((await call.components.queries.head())["position"])
    if after > head and call.components.settings.read_only:
        raise late()
    if after > head:
        raise ApiError(
            410,
            "beyond_the_log",
            f"The log ends at position {head}, and never came to {after}: it is another one, or "
            "was restored from an older backup.",
            hint="What followed that backup is not in the log any more. Events of topic "
            "Host.Restored say at which position it ended: read on from there.",
        )


def _page(rows: list[Row], limit: int, detached_to: int = 0) -> Events:
    return _shown(rows, rows[-1]["position"] if len(rows) == limit else None, detached_to)


def _shown(rows: list[Row], following: int | None, detached_to: int) -> Events:
    events = [EventShown.model_validate(row) for row in rows]
    return Events(events=events, next=following, detached_to=detached_to)


# -------------------------------------------------------------------------------- live


async def event_stream(call: Call) -> web.StreamResponse:
    """GET /v1/events/stream: from a position on (default: from now), until one side ends it.

    The data of its messages are CloudEvents for who accepts those.
    """
    after = await _stream_start(call)
    if not await _following(call, after=after, limit=1):
        await _refuse_beyond(call, after)
    cloud = _preferred(call, "text/event-stream", CLOUD_EVENT) == CLOUD_EVENT
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", **_VARY}
    )
    with (
        call.holds.one(),
        call.components.wakeups.watch(ANY_EVENT) as changed,
        call.holds.waiting(call.request, changed),
    ):
        await response.prepare(call.request)
        try:
            await _send(response, b": from position %d\n\n" % after)
            await _follow(call, response, changed, after, cloud=cloud)
        except (ConnectionError, TimeoutError, DetachedError, psycopg.Error) as error:
            # The reader is gone, or too slow; or has to resume, to hear what is detached, or when
            # the database is there again.  The answer has begun: no other can take its place.
            _log.info("stream_ended", why=type(error).__name__)
    return response


async def _follow(
    call: Call, response: web.StreamResponse, changed: Any, after: int, *, cloud: bool
) -> None:
    feed = call.request.app[FEED]
    woken = True
    while call.permitted and not call.ended:
        full = False
        if woken:
            page = await feed.after(after, cloud=cloud)
            after, full = page.last, page.full
            if page.text:
                await _send(response, page.text)
        else:
            await _send(response, b": still here\n\n")
        woken = full or await changed.wait(HEARTBEAT_S)


async def _stream_start(call: Call) -> int:
    query = call.query(StreamQuery)
    resumed = call.request.headers.get("Last-Event-ID")
    if resumed is not None:
        if not (resumed.isascii() and resumed.isdigit() and len(resumed) < 19):  # noqa: PLR2004
            raise ApiError(400, "invalid", "Last-Event-ID is a position of the log.")
        return int(resumed)
    if query.after is not None:
        return query.after
    return int((await call.components.queries.head())["position"])


async def _send(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(SEND_S_MAX):
        await response.write(data)
