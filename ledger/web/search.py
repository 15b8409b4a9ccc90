"""The search field: from an id or its beginning, or a part of a name, to what is called so; from a
request's id to what it led to.
"""

from __future__ import annotations

import re

from aiohttp import web

from ledger.http.call import Call, canonical
from ledger.http.problem import ApiError
from ledger.web.browser import gone_to
from ledger.web.pages import MANY, PAGES
from ledger.web.reads import answer_of
from ledger.web.rendering import rendered

#: What a search may find, in this order: a page, and the route that says whether there is any.
FOUND = (
    ("operation", "operation", "operation_id"),
    ("server", "server_history", "server_id"),
    ("attachment", "attachment", "attachment_id"),
    ("finding", "drift_finding", "finding_id"),
    ("volume", "volume_history", "volume_id"),
    ("look", "drift_run", "look_id"),
)


#: What only /v1/find finds.
BESIDE = {"host": ("host", "host"), "request": ("request", "refused_id")}
BESIDE |= {"remnant": ("finding", "finding_id")}  # which it is, too


async def search(call: Call) -> web.StreamResponse:
    """GET /ui/search: to what it names, if that exists for the caller."""
    text = call.request.query.get("q", "").strip()
    known = canonical(text)
    if known:
        found = await _by_id(call, known)
    else:
        named = [*await _by_beginning(call, text), *await _by_name(call, text)]
        found = list({path: (what, path) for what, path in named}.values())
    if len(found) == 1:
        return gone_to(found[0][1])
    return rendered(call, "search.html", {"text": text, "found": found})


async def _by_id(call: Call, id_: str) -> list[tuple[str, str]]:
    for page, route, name in FOUND:
        try:
            await answer_of(call, route, {}, **{name: id_})
        except ApiError:  # nothing to the caller, or closed
            continue
        return [(page, _path(page, name, id_))]
    return []


async def _by_beginning(call: Call, text: str) -> list[tuple[str, str]]:
    """What has an id that begins so."""
    try:
        things = (await answer_of(call, "find", {"text": text}))["found"]
    except ApiError:  # too long, or closed
        return []
    pages = {page: (page, name) for page, _, name in FOUND} | BESIDE
    return [(_called(each), _path(*pages[each["kind"]], each["id"])) for each in things]


def _called(thing: dict[str, str]) -> str:
    """What it is, its name, and its id if it has one besides."""
    both = thing["name"], thing["id"]
    return " ".join([thing["kind"], *(text for text in both if text)])


def _path(page: str, name: str, id_: str) -> str:
    path = next(each.path for each in PAGES if each.name == page)
    return path.format(**{name: id_})


async def _by_name(call: Call, text: str) -> list[tuple[str, str]]:
    """Servers and hosts that are called so."""
    found: list[tuple[str, str]] = []
    if not text:
        return found
    asked = {"name": f"(?i){re.escape(text)}", "limit": MANY}
    try:
        listed = await answer_of(call, "servers_detail", {**asked, "all_tenants": "true"})
    except ApiError:  # those of others are closed to the role
        listed = await answer_of(call, "servers_detail", asked)
    servers = listed["servers"]
    found += [
        (f"server {each['name']} {each['id']}", f"/ui/servers/{each['id']}") for each in servers
    ]
    try:
        hosts = (await answer_of(call, "hosts", {}))["hosts"]
    except ApiError:
        return found
    names = [each["host"] for each in hosts if text.lower() in each["host"].lower()]
    return [*found, *((f"host {name}", f"/ui/hosts/{name}") for name in names)]
