"""Does what the table of acts has: shows what an act would do, and does what its form says.

The form's name is of the browser's session alone, so no other site can send it; and it is good for
one time: who sends it twice is led to where the first one was (decision 0073).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from aggregates.errors import DomainError
from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.http.route import Route
from ledger.web import acts, browser
from ledger.web.browser import SESSIONS
from ledger.web.pages import Page
from ledger.web.reads import BY_NAME, answer_of, answer_to, read_all
from ledger.web.rendering import rendered
from ledger.words.acts import ACTS, NOVA_HOST, Act
from ledger.words.consequences import (
    DRY_RUN_REASON,
    ActFacts,
    consequences,
    dry_runs,
    second_look,
    will,
)

#: The field of a form that has its name.
_NAME = "form"


def offered(call: Call, page: Page, read: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the caller can do about what a page shows: the title, where, and what it would do."""
    ids = {**call.request.match_info, "scope": urlencode(second_look(read.get("finding") or {}))}
    return [
        {
            "title": act.title,
            "link": acts.links(act)[page.name].format(**ids),
            "will": _line(act, read),
        }
        for act in ACTS
        if page.name in acts.links(act) and _may(call, act) and acts.possible(act, read)
    ]


def _may(call: Call, act: Act) -> bool:
    if act.of is NOVA_HOST and call.components.adopting is None:
        return False  # no Nova is watched
    return any(map(call.permits, BY_NAME[act.route].rules))


def _line(act: Act, read: Mapping[str, Any]) -> str:
    if act.of.wraps:
        return will(dict(read["operation"]), act.name)
    return act.words.partition("\n")[0]


async def show(call: Call, act: Act) -> web.StreamResponse:
    """GET: what it would do, and the form."""
    given = call.request.query
    for name in given:
        if name not in acts.given(act):
            raise ApiError(400, "invalid", f"This page has no parameter {name[:100]!r}.")
    read = _chosen(await read_all(call, acts.reads(act), {}), given.get("step"))
    possible = acts.possible(act, read)
    would = await _would(call, act, read) if possible else {}
    request = call.request
    shown = {**read, **would, "act": act, "possible": possible, "given": dict(given)}
    shown["action"] = request.path
    form = request.app[SESSIONS].shown(browser.session_name(request), request.path)
    if form is not None:
        return rendered(call, "act.html", {**shown, "form": form})
    answer = web.Response()  # who asks shows otherwise who it is; its cookie is for the form
    name = browser.begin_session(request, answer, "", call.identity)
    form = request.app[SESSIONS].shown(name, request.path)
    page = rendered(call, "act.html", {**shown, "form": form})
    page.cookies.update(answer.cookies)
    return page


def _chosen(read: dict[str, Any], step: str | None) -> dict[str, Any]:
    """What was read, with the step that is meant before all others that are left."""
    if step is None or "operation" not in read:
        return read
    operation = read["operation"]
    left = sorted(operation["left"], key=lambda each: f"{each['lane']} {each['step']}" != step)
    return {**read, "operation": {**operation, "left": left}}


async def do(call: Call, act: Act) -> web.StreamResponse:
    """POST: do it, once; and lead to where what came of it is shown."""
    request = call.request
    browser.refuse_others(request)
    sent = await browser.form_of(request)
    name = sent.get(_NAME, "")
    form = request.app[SESSIONS].sent(browser.session_name(request), name, request.path)
    if form is None:
        raise ApiError(
            403,
            "unknown_form",
            "This form is not known here, or not any more: nothing was done.",
            hint="Open it again, look at what it says now, and send that one.",
        )
    async with form.doing:
        if form.led_to is None:
            form.led_to = await _done(call, act, sent, name)
    return browser.gone_to(form.led_to)


async def _done(call: Call, act: Act, sent: Mapping[str, str], key: str) -> str:
    """Where to go on.  Raises what the API raises: then nothing was done, or it is not known."""
    ids = call.request.match_info
    body = acts.body(act, sent)
    answer = await answer_to(call, act.route, body, key=key, ids=acts.ids(act, ids))
    return (act.then or act.of.then).format(**{**ids, **_ids_of(answer)})


def _ids_of(answer: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, text in answer.items() if isinstance(text, str)}


# ----------------------------------------------------------------------- consequences


async def _would(call: Call, act: Act, read: Mapping[str, Any]) -> dict[str, Any]:
    """What it would do, asked by dry runs; `refused` if it would not be done."""
    if act.of.wraps:
        return {"would": await _on_operation(call, act, read["operation"])}
    if act.name == "repair":
        return {"plan": await _repair(call), "other": await _other_repair(call, read["finding"])}
    if act.of is NOVA_HOST:
        return {"passing": await answer_to(call, act.route, {}, query={"dry_run": "true"})}
    return {}


async def _on_operation(call: Call, act: Act, operation: dict[str, Any]) -> list[str]:
    """The lines of the command line's `operation show`."""
    known = ActFacts()
    for name, body in dry_runs(operation):
        if name != act.name:
            continue
        try:
            acted = await answer_to(call, act.route, body, query={"dry_run": "true"})
            known.leaves[name] = [each["detail"] for each in acted["remnants"]]
        except (ApiError, DomainError) as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            known.refused[name] = str(error)
    return list(consequences(operation, act.name, known))


async def _repair(call: Call) -> Any:
    """The dry run.  Raises what the API raises, so that a repair is refused before it is sent."""
    body: dict[str, Any] = {"reason": DRY_RUN_REASON, "apply": False}
    if chosen := call.request.query.get("repair"):
        body["repair"] = chosen
    return await answer_to(call, "drift_repair", body)


async def _other_repair(call: Call, finding: Mapping[str, Any]) -> str | None:
    """Of a class with two repairs, the one that is not chosen."""
    classes = (await answer_of(call, "drift_classes", {}))["classes"]
    known = next((each for each in classes if each["name"] == finding["drift_class"]), None)
    if known is None or known["or_else"] is None:
        return None
    return None if call.request.query.get("repair") == known["or_else"] else known["or_else"]


# ------------------------------------------------------------------------------ routes


def _routes_of(act: Act) -> tuple[Route, Route]:
    """Under the rules of the route that does it."""

    async def shown(call: Call) -> web.StreamResponse:
        return await show(call, act)

    async def done(call: Call) -> web.StreamResponse:
        return await do(call, act)

    def route(method: str, handler: Any, answers: Mapping[int, str | None]) -> Route:
        return Route(
            name=f"console_{act.route}",
            method=method,
            path=acts.page(act),
            handler=handler,
            answers=answers,
            rules=BY_NAME[act.route].rules,
        )

    return route("GET", shown, {200: "text/html"}), route("POST", done, {303: None})


ROUTES = tuple(route for act in ACTS for route in _routes_of(act))
