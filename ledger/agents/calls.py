"""/v1/hosts/{host} for its agent: register, fetch commands, report.

An agent acts for one host only, and everything that it sends is checked before use
(`checks`).  A fenced host gets its leftovers, and no commands until it has released them
(decision 0027).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from keystoneauth1.exceptions import ClientException

from aggregates.base import EventContext
from handlers.engine.verbs import VERBS
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.messages import (
    AGENT_HEADER,
    SURVEY_HEADER,
    TOLD_HEADER,
    Again,
    Commands,
    Progress,
    Registered,
    Registration,
    Release,
    Report,
    SurveyWanted,
    Taken,
    Users,
)
from host_agent.shared.contract.survey import Survey, SurveyAnswer, SurveySent
from host_agent.shared.contract.wire import read, read_in_turns
from host_agent.shared.platform.clocks import AHEAD_HEADER
from ledger.agents.batches import AGENT_BATCHER, AgentBatcher
from ledger.agents.checks import (
    checked_agent,
    checked_changes,
    checked_registration,
    checked_report,
    checked_survey,
    checked_told,
    clock_ahead,
)
from ledger.agents.contact import unknown_host
from ledger.agents.looking import look_again
from ledger.core.service import RegistrationResult
from ledger.core.wakeups import host_key
from ledger.http.call import Call, answer
from ledger.http.components import is_gone
from ledger.http.problem import ApiError
from ledger.http.schemas import Asked, Id, Position, WaitS
from ledger.nova_beside.adopting import NovaAskedError
from projections.base import Row

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
REPORT_BYTES_MAX = 64 * 1024
SURVEY_BYTES_MAX = 32 * 1024 * 1024
#: No agent waits longer for an answer (host_agent.line.client.REQUEST_S).
AGENT_WAITS_S = 30.0


class CommandsQuery(Asked):
    after: Position = 0
    epoch: Position
    wait_s: WaitS = 0.0


class UsersQuery(Asked):
    """`attachment_id`: the caller's own attachment, which is left out."""

    attachment_id: Id


async def register(call: Call) -> web.StreamResponse:
    """PUT /v1/hosts/{host}: the agent, and every guest on its host."""
    was_silent = await _is_silent(call, call.host())
    name = await _own_host(call)
    async with call.inventory(name, REGISTRATION_BYTES_MAX, _registration) as registration:
        context = while_awaited(call, "registration")
        _refuse_foreign_connector(name, registration)
        await _refuse_two(call, name)
        batcher = _heard(call, name)
        told = checked_told(call.request.headers.get(TOLD_HEADER))
        shown = await batcher.register(name, registration, context, told)
    if was_silent:
        await look_again(call, {"host": name}, "agent_back", "registration")
    return answer(_registered(name, shown))


async def guests(call: Call) -> web.StreamResponse:
    """POST guests: the guests that have changed since the agent last showed them in this epoch."""
    name = await _own_host(call)
    changed = call.components.service.changed
    async with call.inventory(name, REGISTRATION_BYTES_MAX, _changes) as changes:
        _heard(call, name)
        context = while_awaited(call, "registration")
        again = await call.bulkheads.agents(changed, name, changes, context)
    return answer(Again(again=again))


def while_awaited(call: Call, cause: str) -> EventContext:
    """The metadata of a request that is read and shows guests: what is to be stored for it raises
    ApiError 503 once its agent has stopped waiting for the answer.

    This process may have stood still, and another one been shown what the host has now.
    """
    until = time.monotonic() + AGENT_WAITS_S

    def in_time() -> None:
        if is_gone(call.request) or time.monotonic() > until:
            raise ApiError(503, "given_up", "The agent has stopped waiting: it shows itself anew.")

    return replace(call.context(cause), in_time=in_time)


async def _refuse_two(call: Call, name: str) -> None:
    """Raises NovaComputeRunsError; ApiError 503 if Nova does not say whether nova-compute works
    there.
    """
    if (adopting := call.components.adopting) is None:
        return
    try:
        await call.bulkheads.agents(adopting.refuse_two, name)
    except (ClientException, NovaAskedError) as error:
        text = f"Nova does not tell whether its nova-compute runs on host {name}: {error}"
        raise ApiError(503, "nova_unread", text, Retry_After="5") from error


def _registration(body: dict[str, Any]) -> Registration:
    return checked_registration(read_in_turns(body, Registration))


def _changes(body: dict[str, Any]) -> Changes:
    return checked_changes(read_in_turns(body, Changes))


async def volume_users(call: Call) -> web.StreamResponse:
    """GET users: which other servers have the volume connected on this host; asked under its lock
    (S3).
    """
    name = await _own_host(call)
    volume_id = call.id("volume_id", "Nothing is known of volume {}.")
    query = call.query(UsersQuery)
    servers = await call.bulkheads.agents(
        call.components.service.others, name, volume_id, query.attachment_id
    )
    return answer(Users(servers=tuple(servers)))


async def progress(call: Call) -> web.StreamResponse:
    """POST progress: the progress of a long step; it may be lost without harm."""
    name = await _own_host(call)
    told = read(await call.json_object(), Progress)
    _heard(call, name)
    await call.components.inner.note_progress(
        name, told.operation_id, told.run, told.done_bytes, told.total_bytes
    )
    return web.Response(status=HTTPStatus.NO_CONTENT)


@dataclass(frozen=True)
class WaitingCommands:
    """The commands that wait for a host's agent."""

    commands: list[dict[str, Any]] = field(default_factory=list)
    survey: SurveyWanted | None = None


async def commands(call: Call) -> web.StreamResponse:
    """GET commands: those after the cursor, or none after the wait; with a request for a survey."""
    name = await _own_host(call)
    query = call.query(CommandsQuery)
    batcher, agent = _heard(call, name), _agent(call)
    got = call.request.headers.get(SURVEY_HEADER)

    async def look() -> WaitingCommands | None:
        mailbox = await batcher.look(name, query.after)
        if mailbox["epoch"] is None:
            raise unknown_host(name)
        if mailbox["agent"] not in (None, agent):
            raise batcher.speakers.refusal(name)
        if mailbox["epoch"] != query.epoch:
            raise _stale(name, query.epoch, mailbox["epoch"])
        if mailbox["awaited"]:  # decision 0027: first it releases its leftovers
            if asked := [each for each in mailbox["commands"] if _only_asks(each)]:
                return WaitingCommands(asked)
            raise ApiError(
                409,
                "registration_awaited",
                f"Host {name} was unfenced: register again.",
            )
        if mailbox["shut"]:
            return None
        survey = _wanted(mailbox, got)
        return (
            WaitingCommands(mailbox["commands"], survey) if mailbox["commands"] or survey else None
        )

    # A host of which nothing is heard meanwhile must not count as silent.
    wait_s = min(query.wait_s, call.components.settings.host_down_after_s / 2)
    with batcher.holding():
        waiting = await call.hold(host_key(name), look, wait_s) or WaitingCommands()
    if not call.ended:
        batcher.heard(name)
    found = waiting.commands
    after = found[-1]["position"] if found else query.after
    return answer(Commands(commands=found, after=after, survey=waiting.survey))


def _wanted(mailbox: Row, got: str | None) -> SurveyWanted | None:
    """The survey request that its agent has not got yet."""
    if mailbox["survey"] in (None, got):
        return None
    return SurveyWanted(token=mailbox["survey"], digest=mailbox["survey_digest"])


async def survey(call: Call) -> web.StreamResponse:
    """PUT survey: what the host shows on request; or only that it is unchanged."""
    name = await _own_host(call)
    async with call.inventory(name, SURVEY_BYTES_MAX, _survey) as (reply, shown):
        batcher = _heard(call, name)
        noted = await call.components.inner.note_survey(
            name,
            token=reply.token,
            epoch=reply.epoch,
            digest=reply.digest,
            boot_id=shown and shown.boot_id,
            document=shown and msgspec.json.encode(shown).decode(),
        )
    if not noted:
        _refuse_survey(name, reply, await batcher.look(name, 0))
    return answer(Again(again=not noted))


def _survey(body: dict[str, Any]) -> tuple[SurveyAnswer, Survey | None]:
    return read(body, SurveyAnswer), _shown_in(body)


def _shown_in(body: dict[str, Any]) -> Survey | None:
    """The survey to store, unless there is only the digest of the stored one."""
    return checked_survey(read_in_turns(body, Survey)) if "boot_id" in body else None


async def survey_sent(call: Call) -> web.StreamResponse:
    """PUT survey/sent: what a host of Nova's shows of itself; or only that it is unchanged.

    It is no contact of an agent: nothing can be begun on the host because of it.
    """
    began, name = time.monotonic(), _spoken_for(call)
    if call.components.adopting is None:
        text = "This service watches no Nova, so nobody compares what hosts send of themselves."
        raise ApiError(409, "nothing_watched", text)
    async with call.inventory(name, SURVEY_BYTES_MAX, _sent) as (reply, shown):
        if is_gone(call.request):  # this process may have stood still meanwhile
            raise ApiError(503, "given_up", "The host has stopped waiting: it sends another one.")
        noted = await call.components.inner.send_survey(
            name,
            digest=reply.digest,
            boot_id=shown and shown.boot_id,
            document=shown and msgspec.json.encode(shown).decode(),
            age_s=lambda: reply.made_s + time.monotonic() - began,
        )
    if not noted:
        await _refuse_sent(call, name, whole=shown is not None)
    return answer(Again(again=not noted))


def _sent(body: dict[str, Any]) -> tuple[SurveySent, Survey | None]:
    return read(body, SurveySent), _shown_in(body)


async def _refuse_sent(call: Call, name: str, *, whole: bool) -> None:
    """Returns if the only fault is that the survey of its digest is not stored here.

    Raises ApiError 409.
    """
    if await call.components.queries.host(name) is not None:
        why = f"Host {name} is the ledger's: it asks the agent there for surveys."
        raise ApiError(409, "survey_not_wanted", why, hint="Stop sending them: disable the timer.")
    if whole:
        text = f"Another machine, or another boot of this one, has just sent a survey as {name}."
        raise ApiError(409, "host_taken", text, hint="Two machines must not have one name.")


def _refuse_survey(name: str, reply: SurveyAnswer, mailbox: Row) -> None:
    """Returns if the only fault is that the survey of its digest is not stored here.

    Raises ApiError 404, 409.
    """
    if mailbox["epoch"] is None:
        raise unknown_host(name)
    if mailbox["epoch"] != reply.epoch:
        raise _stale(name, reply.epoch, mailbox["epoch"])
    if mailbox["shut"] or mailbox["awaited"]:
        why = "it is fenced, or has not registered since it was unfenced"
        raise ApiError(409, "host_fenced", f"No survey of host {name} is accepted: {why}.")
    if mailbox["survey"] != reply.token:
        why = f"Host {name} was not asked for this survey, or it is no longer awaited."
        raise ApiError(409, "survey_not_wanted", why)


def _stale(name: str, given: int, current: int) -> ApiError:
    return ApiError(
        409,
        "stale_epoch",
        f"Epoch {given} of host {name} is out of date, the current one is {current}. "
        "Register again.",
    )


async def reports(call: Call) -> web.StreamResponse:
    """POST reports: results of steps of a run, and the guest; whether the run continues."""
    name = await _own_host(call)
    said = read(await call.json_object(REPORT_BYTES_MAX), Report)
    report = checked_report(said, call.components.clock())
    _heard(call, name)
    context = while_awaited(call, "report") if report.guest else call.context("report")
    work = call.components.service.report
    goes_on, shown = await call.bulkheads.agents(work, name, report, context)
    # Not until it is projected: the agent reads nothing back, and its next step can begin.
    return answer(Taken(goes_on=goes_on, taken=len(report.results), shown=shown))


def _only_asks(command: dict[str, Any]) -> bool:
    return all(VERBS[step["verb"]].asks_only for step in command["steps"])


async def _is_silent(call: Call, name: str) -> bool:
    """Whether the host's agent was in contact once, and no longer is."""
    seen_at = await call.components.inner.seen_at(name)
    silent_after_s = call.components.settings.host_down_after_s
    return seen_at is not None and call.components.clock() - seen_at.timestamp() >= silent_after_s


def _heard(call: Call, name: str) -> AgentBatcher:
    """Record the contact, and what the agent reports of its host's clock."""
    batcher = call.request.app[AGENT_BATCHER]
    batcher.heard(name, clock_ahead(call.request.headers.get(AHEAD_HEADER)))
    return batcher


async def _own_host(call: Call) -> str:
    """The host in the path, if this agent may act for it.  Raises ApiError 403, 409."""
    name = _spoken_for(call)
    await call.request.app[AGENT_BATCHER].speakers.let_in(name, _agent(call))
    return name


def _spoken_for(call: Call) -> str:
    """The host in the path, if this token is its agent's.  Raises ApiError 403."""
    name = call.host()
    if not call.identity.may_speak_for(name):
        raise ApiError(
            403,
            "forbidden",
            f"This token is not that of host {name}'s agent.",
            hint="Each host has a token of its own, with its name in `host`.",
        )
    return name


def _agent(call: Call) -> str | None:
    return checked_agent(call.request.headers.get(AGENT_HEADER))


def _refuse_foreign_connector(name: str, registration: Registration) -> None:
    """Otherwise Cinder would be told that another host has the volume.  Raises ApiError 409."""
    named = (registration.connector or {}).get("host", name)
    if named != name:
        raise ApiError(
            409,
            "connector_of_another_host",
            f"The agent of host {name} would connect volumes as host {named}.",
            hint="[agent] host is the name by which os-brick and Cinder know the host, too.",
        )


def _registered(name: str, shown: RegistrationResult) -> Registered:
    host = shown.host
    guests, attachments = host.leftovers if host.suspect else ((), ())
    return Registered(
        host=name,
        epoch=host.epoch,
        fenced=host.fenced,
        release=Release(
            guests=tuple(guests), attachments=tuple(attachments), unknown=tuple(shown.unknown)
        ),
        again=shown.again,
        position=shown.position,
    )
