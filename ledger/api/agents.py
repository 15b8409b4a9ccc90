"""/v1/hosts/{host} for its agent: register, take commands, report.

An agent speaks for one host alone, and whatever it sends is checked before it is used
(`agent_checks`).  A host that was fenced is told what it still has that is not its any
more, and gets no commands until it shows that it has let go of it (D7).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from aiohttp import web

from aggregates.host import Host
from host_agent.contract import Registration, Report
from ledger.api.agent_checks import checked_registration, checked_report
from ledger.api.call import Call, answer
from ledger.api.hosts import host_row
from ledger.api.problem import ApiError
from ledger.api.schemas import (
    Commands,
    CommandsQuery,
    ProgressSaid,
    Registered,
    Users,
    UsersQuery,
)
from ledger.wakeups import host_key

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
REPORT_BYTES_MAX = 64 * 1024
COMMANDS_MAX = 100


async def register(call: Call) -> web.StreamResponse:
    """PUT /v1/hosts/{host}: the agent, and every guest on its host."""
    name = _own_host(call)
    said = checked_registration(
        Registration.from_wire(await call.json_object(REGISTRATION_BYTES_MAX))
    )
    context = call.context("registration")
    await call.services.queries.touch_host(name)
    host, position = await asyncio.to_thread(call.services.service.register, name, said, context)
    # Only with everything known is a guest that was not shown surely one that is gone.
    head = await call.services.queries.head()
    await call.written(max(position, head["position"]))
    shown = {guest.server_id for guest in said.guests}
    for server_id in sorted(await call.services.queries.guests_of_host(name) - shown):
        lost = await asyncio.to_thread(call.services.service.lost_guest, server_id, name, context)
        position = max(position, lost)
    await call.written(position)
    return answer(_registered(name, host))


async def volume_users(call: Call) -> web.StreamResponse:
    """GET users: who else has the volume connected on this host; asked under its lock (S3)."""
    name = _own_host(call)
    volume_id = call.id("volume_id", "Nothing is known of volume {}.")
    query = call.query(UsersQuery)
    servers = await asyncio.to_thread(
        call.services.service.others, name, volume_id, query.attachment_id
    )
    return answer(Users.model_validate({"servers": servers}))


async def progress(call: Call) -> web.StreamResponse:
    """POST progress: how far a long step has come; it may be lost without harm."""
    name = _own_host(call)
    said = await call.json(ProgressSaid)
    await call.services.queries.touch_host(name)
    await call.services.queries.note_progress(
        name, said.operation_id, said.run, said.done_bytes, said.total_bytes
    )
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def commands(call: Call) -> web.StreamResponse:
    """GET commands: those after the cursor, or none when the wait is over."""
    name = _own_host(call)
    query = call.query(CommandsQuery)
    await call.services.queries.touch_host(name)

    async def look() -> list[dict[str, Any]] | None:
        row = await host_row(call)
        if row["epoch"] != query.epoch:
            raise ApiError(
                409,
                "stale_epoch",
                f"Epoch {query.epoch} of host {name} is over; it is {row['epoch']} now. "
                "Register again.",
            )
        if row["fenced"] or row["suspect"]:  # D7: first it lets go of what is not its any more
            return None
        return await call.services.queries.commands(name, query.after, COMMANDS_MAX) or None

    rows = await call.hold(host_key(name), look, query.wait_s) or []
    if not call.ended:
        await call.services.queries.touch_host(name)
    return answer(
        Commands(
            commands=[{**row["command"], "position": row["position"]} for row in rows],
            after=rows[-1]["position"] if rows else query.after,
        )
    )


async def reports(call: Call) -> web.StreamResponse:
    """POST reports: the result of one step; whether the run goes on."""
    name = _own_host(call)
    said = checked_report(Report.from_wire(await call.json_object(REPORT_BYTES_MAX)))
    await call.services.queries.touch_host(name)
    goes_on, position = await asyncio.to_thread(
        call.services.service.report, name, said, call.context("report")
    )
    # Not waited for: the agent reads nothing back, and its next step can begin.
    del position
    return answer({"continue": goes_on})


def _own_host(call: Call) -> str:
    name = call.host()
    if not call.identity.may_speak_for(name):
        raise ApiError(
            403,
            "forbidden",
            f"This token is not that of host {name}'s agent.",
            hint="Each host has a token of its own, with its name in `host`.",
        )
    return name


def _registered(name: str, host: Host) -> Registered:
    guests, attachments = host.leftovers if host.suspect else ((), ())
    release: Any = {"guests": list(guests), "attachments": list(attachments)}
    return Registered(host=name, epoch=host.epoch, fenced=host.fenced, release=release)
