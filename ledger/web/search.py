"""The search field: from an id or its beginning, or a part of a name, to what is called so."""

from __future__ import annotations

from aiohttp import web

from ledger.api.call import Call, canonical
from ledger.api.problem import ApiError
from ledger.web.browser import gone_to
from ledger.web.pages import PAGES
from ledger.web.reads import answer_of
from ledger.web.rendering import rendered

#: What a search may find, in this order: a page, and the route that says whether there is any.
FOUND = (
    ("operation", "operation", "operation_id"),
    ("server", "server_history", "server_id"),
    ("attachment", "attachment", "attachment_id"),
    ("finding", "drift_finding", "finding_id"),
    ("volume", "volume_history", "volume_id"),
)


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
    names = {page: name for page, _, name in FOUND}
    return [
        (
            f"{each['kind']} {each['name'] or each['id']}",
            _path(each["kind"], names[each["kind"]], each["id"]),
        )
        for each in things
        if each["kind"] in names
    ]


def _path(page: str, name: str, id_: str) -> str:
    path = next(each.path for each in PAGES if each.name == page)
    return path.format(**{name: id_})


async def _by_name(call: Call, text: str) -> list[tuple[str, str]]:
    """Servers and hosts that are called so."""
    found: list[tuple[str, str]] = []
    if not text:
        return found
    servers = (await answer_of(call, "servers_detail", {}))["servers"]
    found += [
        (f"server {each['name']}", f"/ui/servers/{each['id']}")
        for each in servers
        if text.lower() in each["name"].lower()
    ]
    try:
        hosts = (await answer_of(call, "hosts", {}))["hosts"]
    except ApiError:
        return found
    names = [each["host"] for each in hosts if text.lower() in each["host"].lower()]
    return [*found, *((f"host {name}", f"/ui/hosts/{name}") for name in names)]
