"""Makes HTML of what was read, by the templates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from aggregates.catalogue import TOPICS
from handlers.drift.classes import BY_NAME
from handlers.flows import FLOWS
from ledger.config import AuthMode
from ledger.http.call import Call
from ledger.http.components import COMPONENTS, Components
from ledger.http.problem import Failure
from ledger.web import drawn, texts
from ledger.web.browser import gone_to, path_here, wants_stream
from ledger.web.pages import AS_OF, PAGES, Page


@dataclass(frozen=True)
class _At:
    """What links of a page carry on: the moment that it is as of, and when that was known."""

    at: str | None
    known_at: str | None

    def url(self, path: str, **query: Any) -> str:
        """A link with what is asked for, and the moment."""
        asked = {"at": self.at, "known_at": self.known_at, **query}
        asked = {name: value for name, value in asked.items() if value not in {None, ""}}
        return f"{path}?{urlencode(asked)}" if asked else path


def rendered(
    call: Call,
    template: str,
    context: dict[str, Any],
    *,
    page: Page | None = None,
    at: datetime | None = None,
    status: int = HTTPStatus.OK,
) -> web.Response:
    """A page."""
    known_at = texts.as_moment(call.request.query.get("known_at")) if at else None
    context = context | {"page": page, "at": at, "known_at": known_at, "who": _who(call)}
    return _html(call.components, template, context, status)


def moving_part(call: Call, page: Page, context: dict[str, Any]) -> str:
    """What of a page moves by itself, as it is now."""
    context = context | {"page": page, "at": None, "who": _who(call), "moving": True}
    return _text(call.components, page.template, context)


def error_page(request: web.Request, failure: Failure) -> web.Response:
    """What went wrong, for people; who has to log in is asked to."""
    if wants_stream(request):  # nobody reads it: the page stays as it is
        return web.Response(status=failure.status, headers=failure.headers)
    if failure.status == HTTPStatus.UNAUTHORIZED:
        # What a form would have done is not: it is shown again after the log-in.
        to = request.path_qs if request.method == "GET" else request.path
        return gone_to(f"/ui/login?{urlencode({'to': path_here(to)})}")
    again = request.path if request.method == "POST" else None
    context = {"failure": failure, "again": again, "page": None, "at": None, "who": None}
    response = _html(request.app[COMPONENTS], "error.html", context, failure.status)
    response.headers.update(failure.headers)
    return response


def _who(call: Call) -> str | None:
    return call.identity.actor.name if call.identity.roles else None


def _html(
    components: Components, template: str, context: dict[str, Any], status: int
) -> web.Response:
    text = _text(components, template, context)
    return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)


def _text(components: Components, template: str, context: dict[str, Any]) -> str:
    at, known_at = (context.get(name) for name in AS_OF)
    then = _At(*(each.isoformat() if each else None for each in (at, known_at)))
    shown = {
        "acts": (),
        "here": None,
        "moving": False,
        "known_at": None,
        **context,
        "now": datetime.fromtimestamp(components.clock(), UTC),
        "url": then.url,
        "sessions": components.settings.auth is not AuthMode.NOAUTH,
    }
    return _templates().get_template(template).render(shown)


@functools.cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("ledger.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": texts.moment,
        "ago": texts.ago,
        "begun": texts.begun,
        "short": texts.short,
        "words": texts.words,
        "does": texts.does,
        "look": texts.look,
        "story": texts.story,
        "by_volume": texts.by_volume,
        "since": texts.since,
        "worst_first": texts.worst_first,
        "with_ids": texts.with_ids,
    }
    made.globals |= {"timeline": drawn.timeline, "plot": drawn.plot}
    made.globals |= {"topics": TOPICS, "flow_names": FLOWS, "drift_classes": BY_NAME}
    made.globals |= {"menu": [page for page in PAGES if page.menu]}
    return made
