"""The body of a request: bounded in bytes and in time, and read once."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ledger.http.problem import ApiError

#: How long a body may take to arrive, all of it.
BODY_S_MAX = 60.0

Body = bytes | bytearray

_BODY: web.RequestKey[Body] = web.RequestKey("body", bytearray)


async def body_of(request: web.Request, limit: int) -> Body:
    """All of it, as it was sent, whoever has read it before.  ApiError 408, 413."""
    if _BODY not in request:
        request[_BODY] = await _read(request, limit)
    if len(request[_BODY]) > limit:
        raise too_large(limit)
    return request[_BODY]


async def _read(request: web.Request, limit: int) -> Body:
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    content = request.content
    if content.is_eof():  # as with nearly all: it came with its head, and no timer is needed
        return content.read_nowait()
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in content.iter_any():
                raw += chunk
                if len(raw) > limit:
                    raise too_large(limit)
    except TimeoutError:
        text = f"The body did not arrive in {BODY_S_MAX:g} s, the limit here."
        raise ApiError(408, "body_too_slow", text, Connection="close") from None
    return raw


def too_large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"The body is larger than {limit} bytes, the limit here.")
