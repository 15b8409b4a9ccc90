"""/v1/hosts for operators: who is there, who is alive, fencing, and whose a host is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web
from keystoneauth1.exceptions import ClientException

from aggregates.errors import HostInUseError
from ledger.agents.batches import AGENT_BATCHER
from ledger.agents.contact import is_alive, unknown_host
from ledger.agents.looking import look_again
from ledger.http.call import Call, answer, caught_up
from ledger.http.components import Components
from ledger.http.problem import ApiError
from ledger.native.schemas import ActQuery, HostObserved, HostPassed, Hosts, HostShown, HostsQuery
from ledger.nova_beside.adopting import Adopting, AdoptionReport, NovaAskedError
from ledger.nova_beside.reads import CutListError

Row = dict[str, Any]

#: Servers that a refusal names.
NAMED_MAX = 5


async def hosts(call: Call) -> web.StreamResponse:
    """GET /v1/hosts."""
    queries, observed = call.components.queries, None
    rows = await queries.hosts()
    if call.query(HostsQuery).observed:
        seen = await queries.hosts_observed()
        observed = [HostObserved.model_validate(row) for row in seen]
    shown = [_shown(call.components, row) for row in rows]
    return answer(Hosts(hosts=shown, observed=observed))


async def host(call: Call) -> web.StreamResponse:
    """GET /v1/hosts/{host}."""
    row = await host_row(call)
    known = await call.bulkheads.users(call.components.service.host, row["host"])
    return answer(_shown(call.components, {**row, "came_from": known.came_from}))


async def fence(call: Call, *, reason: str, evidence: str, force: bool) -> web.StreamResponse:
    """POST fence: what the host was asked to do and has not answered fails at once."""
    row = await host_row(call)
    name = row["host"]
    if not force and is_alive(call.components, row["seen_at"]):
        since = row["seen_at"].isoformat(timespec="seconds")
        raise ApiError(
            409,
            "host_answers",
            f"The agent of host {name} was in contact at {since}: it may be running its guests.",
            hint="If it is cut off from the storage nevertheless, ask for that with `force`.",
        )
    position = await call.operate(call.components.service.fence, name, reason, evidence)
    await let_go(call, name, position)
    return await _answer_again(call)


async def let_go(call: Call, name: str, position: int) -> None:
    """Tell the host's agent, and all operations, of a fence that is at this position."""
    service, context = call.components.service, call.context("operator")
    await call.request.app[AGENT_BATCHER].speakers.free(name)
    # After a fence no intent that did not know of it is stored: one look finds all.
    for operation_id in await call.components.queries.open_on_host(name):
        said = await call.bulkheads.operators(service.on_host_fenced, operation_id, name, context)
        position = max(position, said)
    await call.written(position)


async def unfence(call: Call, *, reason: str) -> web.StreamResponse:
    """POST unfence: it gets work again, in its new epoch."""
    name = (await host_row(call))["host"]
    await call.operate(call.components.service.change_host, name, lambda each: each.unfence(reason))
    return await _answer_again(call)


async def forget(call: Call, *, reason: str) -> web.StreamResponse:
    """POST forget: it is listed no more; the answer is what it was."""
    row = await host_row(call)
    await forget_host(call, row, reason)
    return answer(_shown(call.components, row))


async def forget_host(call: Call, row: Row, reason: str) -> None:
    """Forget a host that nothing is on.  Raises HostInUseError; ApiError 409, 502, 503."""
    name, components = row["host"], call.components
    if is_alive(components, row["seen_at"]):
        text = f"The agent of host {name} is in contact: it would register again."
        raise ApiError(409, "host_answers", text, hint="Stop the agent, then ask again.")
    known = await call.bulkheads.users(components.service.host, name)
    if known.came_from and components.adopting and await _runs(call, components.adopting, name):
        why = "Nova reports its nova-compute as up or forced down. Delete it in Nova first."
        raise HostInUseError(host=name, why=why)
    await caught_up(call)
    if used := await components.queries.in_use_by(name):
        what = ", ".join(f"{each['what']}s: {each['count']} ({each['id']})" for each in used)
        raise HostInUseError(host=name, why=f"it still has {what}. {_FREE}")
    await call.operate(components.service.change_host, name, lambda each: each.delete(reason))


_FREE = (
    "Evacuate or delete its servers; repair or ignore findings, and acknowledge remnants. What is "
    "named is the first of each kind."
)


async def _runs(call: Call, adopting: Adopting, name: str) -> bool:
    """Whether Nova's nova-compute may work there.  ApiError 502."""
    try:
        return await call.bulkheads.users(adopting.runs, name)
    except (ClientException, CutListError, NovaAskedError) as error:
        raise _unread(error) from error


async def vouch(call: Call, *, reason: str) -> web.StreamResponse:
    """POST vouch: the log may be believed of it again, and it gets work; a look sees to it."""
    row = await host_row(call)
    name = row["host"]
    if row["unvouched"]:
        await _refuse_unseen(call, name)
    await call.operate(call.components.service.change_host, name, lambda each: each.vouch(reason))
    await look_again(call, {"host": name}, "vouch", "operator")
    return await _answer_again(call)


async def adopt(call: Call, *, reason: str | None) -> web.StreamResponse:
    """POST adopt: which of its servers were, or would be (`dry_run`)."""
    adopting, name = _adopting(call), call.host()
    done, dry_run = await _passed(call, reason, partial(adopting.adopt, name))
    if not dry_run and (why := _in_the_way(done)):
        raise ApiError(409, "not_adoptable", f"Host {name} cannot be adopted now: {why}", hint=_DRY)
    return answer(_passed_on(done, dry_run=dry_run))


async def hand_back(call: Call, *, reason: str | None) -> web.StreamResponse:
    """POST hand_back: which of its servers went, or could go (`dry_run`)."""
    adopting, name = _adopting(call), call.host()
    row = await call.components.queries.host(name)
    if (
        row is not None
        and not call.query(ActQuery).dry_run
        and is_alive(call.components, row["seen_at"])
    ):
        text = f"The agent of host {name} is in contact: it and nova-compute must not both work."
        raise ApiError(409, "host_answers", text, hint="Stop the agent, then ask again.")
    done, dry_run = await _passed(call, reason, partial(adopting.hand_back, name))
    return answer(_passed_on(done, dry_run=dry_run))


_DRY = "All of it is told by: host adopt --dry-run."


def _adopting(call: Call) -> Adopting:
    """ApiError 409 if no Nova is watched."""
    if call.components.adopting is None:
        text = "No Nova is watched by this service: it is told of one by [observe.auth]."
        raise ApiError(409, "nothing_watched", text)
    return call.components.adopting


async def _passed(
    call: Call, reason: str | None, act: Callable[..., AdoptionReport]
) -> tuple[AdoptionReport, bool]:
    """What an act did, and whether it was a dry run.  ApiError 400, 502."""
    dry_run = call.query(ActQuery).dry_run
    if reason is None and not dry_run:
        raise ApiError(400, "invalid", "'reason' says why, and is needed but for a dry run.")
    await caught_up(call)
    try:
        done = await call.bulkheads.users(
            act, reason or "", call.context("operator"), dry_run=dry_run
        )
    except (ClientException, CutListError) as error:
        raise _unread(error) from error
    await call.written(done.position)
    return done, dry_run


def _unread(error: Exception) -> ApiError:
    why, hint = (*error.args, None, None)[:2]
    text = "What Nova and Cinder have cannot be read, so nothing was changed: "
    return ApiError(502, "cloud_unread", text + str(why or type(error).__name__), hint=hint)


def _in_the_way(done: AdoptionReport) -> str:
    """Why nothing was adopted, or ""."""
    if done.refusals or not done.servers or any(each.state == "adopted" for each in done.servers):
        return " ".join(done.refusals)
    return " ".join(f"{each.server_id}: {each.why[0]}" for each in done.servers[:NAMED_MAX])


def _passed_on(done: AdoptionReport, *, dry_run: bool) -> HostPassed:
    return HostPassed.model_validate({**asdict(done), "dry_run": dry_run})


async def _refuse_unseen(call: Call, name: str) -> None:
    """ApiError 409 if the host has not shown since the restore what it has; it is asked, then."""
    queries, silent_after_s = call.components.queries, call.components.settings.host_down_after_s
    why = (await queries.survey_standing(name, silent_after_s=silent_after_s)).why_unknown
    if why is None:
        return
    await queries.want_surveys([name], silent_after_s=silent_after_s)
    raise ApiError(
        409,
        "host_unseen",
        f"Host {name} cannot be vouched for yet: it has not reported what it has: {why}.",
        hint="The ledger asks its agent now: try again in a moment. If the host is gone for "
        "good, fence it.",
    )


async def host_row(call: Call) -> Row:
    """The host of the path.  ApiError 404."""
    return await host_row_of(call, call.host())


async def host_row_of(call: Call, name: str) -> Row:
    """The host of this name.  ApiError 404."""
    row = await call.components.queries.host(name)
    if row is None:
        raise unknown_host(name)
    return row


async def _answer_again(call: Call) -> web.StreamResponse:
    return answer(_shown(call.components, await host_row(call)))


def _shown(components: Components, row: Row) -> HostShown:
    return HostShown.model_validate({**row, "alive": is_alive(components, row["seen_at"])})
