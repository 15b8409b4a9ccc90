"""Asks the API from within, as the caller: the same routes, the same policy, the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from aggregates.errors import DomainError
from ledger.http import microversions
from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.http.routes import ROUTES
from ledger.web.pages import Read

BY_NAME = {route.name: route for route in reversed(ROUTES)}  # of several paths the first

_NOTHING: Mapping[str, str] = {}

#: What is closed to the caller's role, and what does not exist for it.
_NOT_SHOWN: dict[int, dict[str, Any] | None] = {403: None, 404: {}}


async def read_all(
    call: Call,
    reads: Mapping[str, Read],
    given: Mapping[str, str],
    shown: Mapping[str, str] = _NOTHING,
) -> dict[str, Any]:
    """What is read, by name; None for what is closed to the caller, {} for what is not.

    `given`: the page's own query; `shown`: which part of its time line.  Raises what the API raises
    of what is needed.
    """
    answers: dict[str, Any] = {}
    for name, each in reads.items():
        known = {**answers, **shown, **call.request.match_info}
        answers[name] = await _read(call, each, given, known)
    return answers


async def _read(call: Call, read: Read, given: Mapping[str, str], known: Mapping[str, Any]) -> Any:
    asked = {name: text.format(**known) for name, text in read.query.items()}
    asked |= {name: given.get(name, "") for name in read.given}
    asked = {name: text for name, text in asked.items() if text}
    try:
        return await answer_of(call, read.route, asked)
    except (ApiError, DomainError) as error:
        if read.needed or error.status not in _NOT_SHOWN:
            raise
        return _NOT_SHOWN[error.status]


async def answer_of(call: Call, name: str, query: Mapping[str, str], **ids: str) -> Any:
    """The answer of a route, as data.  `ids`: of its path; else those of the call's.

    Raises what the API raises.
    """
    route = BY_NAME[name]
    call = call.under(*route.rules)
    app = call.request.app
    of_the_page = {
        part: text for part, text in call.request.match_info.items() if f"{{{part}}}" in route.path
    }
    url = app.router[name].url_for(**{**of_the_page, **ids})
    request = call.request.clone(method=route.method, rel_url=url.with_query(query))
    found = await app.router.resolve(request)
    found.add_app(app)
    request._match_info = found  # noqa: SLF001 - as the application does; there is no other way
    response = await route.answer(replace(call, request=request, version=microversions.MAX))
    assert isinstance(response, web.Response), "a stream is not read as a whole"
    assert isinstance(response.body, bytes), "answers are JSON"
    return orjson.loads(response.body)


async def answer_to(
    call: Call,
    name: str,
    body: Mapping[str, Any],
    *,
    query: Mapping[str, str] | None = None,
    key: str | None = None,
    ids: Mapping[str, str] | None = None,
) -> Any:
    """The answer of a route that is sent something; `key`: its Idempotency-Key.

    Raises what the API raises.
    """
    request = call.request
    if key is not None:
        request = request.clone(headers={**request.headers, "Idempotency-Key": key})
    sent = replace(call, request=request, sent=dict(body))
    return await answer_of(sent, name, query or {}, **(ids or {}))
