"""The search field: from an id or its beginning, or a part of a name, to what is called so; from a
request's id to what it led to.  What is not here may be another ledger's (ledger.web.other_cells).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiohttp import web

from ledger.http.call import Call, canonical
from ledger.http.problem import ApiError
from ledger.web.browser import gone_to
from ledger.web.other_cells import CellAnswer, asked
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


#: The fields of filters that name a thing with an id.
FILTERS = ("server", "volume")

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
    # A whole id that is here is nowhere else; a name, or a beginning, may be.
    told = await asked(call, text) if text and not (known and found) else []
    silent = [each for each in told if each.silent]
    elsewhere = [thing for each in told for thing in _of_cell(each)]
    if len(found) == 1 and not elsewhere and not silent:
        return gone_to(found[0][1])
    context = {"text": text, "found": [*found, *elsewhere], "silent": silent}
    return rendered(call, "search.html", context)


async def meant(call: Call, given: Mapping[str, str]) -> dict[str, str]:
    """What a page is asked for, with an id where a filter has a name or the beginning of an id.

    ApiError 404 if that fits nothing of its kind, or several; and whatever refuses to say that.
    """
    return {
        name: await _whole(call, name, text.strip()) if name in FILTERS else text
        for name, text in given.items()
    }


async def _whole(call: Call, kind: str, text: str) -> str:
    if not text or canonical(text):
        return text
    found: list[dict[str, str]] = (await answer_of(call, "find", {"text": text}))["found"]
    fitting = [each for each in found if each["kind"] == kind]
    if len(fitting) != 1:
        which = ", ".join(map(_called, fitting))
        why = f"{text[:100]!r} may be {which}." if which else f"There is no {kind} {text[:100]!r}."
        wanted = "its name, its id" if kind == "server" else "its id"
        hint = f"Give {wanted}, or the first four or more characters of that."
        raise ApiError(404, "not_found", why, hint=hint)
    return fitting[0]["id"]


def _of_cell(told: CellAnswer) -> list[tuple[str, str]]:
    return [
        (f"{told.cell.name}: {_called(each.model_dump())}", told.link(*_page(each.kind), each.id))
        for each in told.found
    ]


async def _by_id(call: Call, id_: str) -> list[tuple[str, str]]:
    for kind, route, part in FOUND:
        try:
            await answer_of(call, route, {}, **{part: id_})
        except ApiError:  # nothing to the caller, or closed
            continue
        return [(kind, _path(kind, id_))]
    return []


async def _by_beginning(call: Call, text: str) -> list[tuple[str, str]]:
    """What has an id that begins so."""
    try:
        found = (await answer_of(call, "find", {"text": text}))["found"]
    except ApiError:  # too long, or closed
        return []
    return [(_called(each), _path(each["kind"], each["id"])) for each in found]


def _page(kind: str) -> tuple[str, str]:
    """The path of the page of such a thing, and which part of that its id is."""
    page, part = ({page: (page, part) for page, _, part in FOUND} | BESIDE)[kind]
    return next(each.path for each in PAGES if each.name == page), part


def _called(thing: dict[str, str]) -> str:
    """What it is, its name, and its id if it has one besides."""
    both = thing["name"], thing["id"]
    return " ".join([thing["kind"], *(text for text in both if text)])


def _path(kind: str, id_: str) -> str:
    path, part = _page(kind)
    return path.format(**{part: id_})


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
    servers = sorted(listed["servers"], key=lambda each: str(each["name"]))
    found += [
        (f"server {each['name']} {each['id']}", f"/ui/servers/{each['id']}") for each in servers
    ]
    try:
        hosts = (await answer_of(call, "hosts", {}))["hosts"]
    except ApiError:
        return found
    names = [each["host"] for each in hosts if text.lower() in each["host"].lower()]
    return [*found, *((f"host {name}", f"/ui/hosts/{name}") for name in names)]
