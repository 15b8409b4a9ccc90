"""/v1/hosts/{host} for its agent: register, take commands, report.

An agent speaks for one host alone, and whatever it sends is checked before it is used:
ids, sizes, the outputs the contract names.  Nothing else of a report reaches the log, so
that no secret can (D5).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

from aiohttp import web

from aggregates.host import Host
from host_agent.contract import Guest, Registration, Report, StepError, WireError
from ledger.api.call import Call, answer, canonical
from ledger.api.hosts import host_row
from ledger.api.problem import ApiError
from ledger.api.schemas import Commands, CommandsQuery, Registered
from ledger.telemetry import masked
from ledger.wakeups import host_key

REGISTRATION_BYTES_MAX = 8 * 1024 * 1024
REPORT_BYTES_MAX = 64 * 1024
GUESTS_MAX = 10_000
DEVICES_MAX = 1_000
CAPABILITIES_MAX = 64
COMMANDS_MAX = 100
MESSAGE_CHARS_MAX = 1_000
NUMBER_MAX = 2**31 - 1

_NAME = re.compile(r"[^\x00-\x1f\x7f]{0,255}\Z")
_WORD = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}\Z", re.ASCII)

#: What a report's outputs may say (contract.Report); all else is dropped.
_OUTPUTS = {
    "driver": re.compile(r"[\w.+-]{1,64}\Z", re.ASCII),
    "target_digest": re.compile(r"[\w:.+/=-]{1,128}\Z", re.ASCII),
    "device_path": re.compile(r"[\w:.+/@=,-]{1,512}\Z", re.ASCII),
    "device_name": re.compile(r"[a-z0-9]{1,32}\Z", re.ASCII),
    "bus": re.compile(r"[a-z0-9]{1,16}\Z", re.ASCII),
}
_FLAGS = frozenset({"shared"})


async def register(call: Call) -> web.StreamResponse:
    """PUT /v1/hosts/{host}: the agent, and every guest on its host."""
    name = _own_host(call)
    said = _checked_registration(
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
        if row["fenced"]:
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
    said = _checked_report(Report.from_wire(await call.json_object(REPORT_BYTES_MAX)))
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
    return Registered(host=name, epoch=host.epoch, fenced=host.fenced)


# ---------------------------------------------------------------------- what agents say


def _checked_registration(said: Registration) -> Registration:
    _require(0 <= said.service_version <= NUMBER_MAX, "service_version")
    _require(len(said.capabilities) <= CAPABILITIES_MAX, "capabilities")
    for name, value in said.capabilities.items():
        listed = isinstance(value, list) and len(value) <= CAPABILITIES_MAX
        words = listed and all(isinstance(word, str) and _WORD.match(word) for word in value)
        _require(bool(_WORD.match(name)) and (isinstance(value, bool) or words), "capabilities")
    _require(len(said.guests) <= GUESTS_MAX, "guests")
    guests = tuple(_checked_guest(guest) for guest in said.guests)
    _require(len({guest.server_id for guest in guests}) == len(guests), "guests")
    return replace(said, guests=guests)


def _checked_guest(guest: Guest) -> Guest:
    _require(bool(_NAME.match(guest.name)), "name")
    _require(len(guest.devices) <= DEVICES_MAX, "devices")
    _require(all(_WORD.match(device) for device in guest.devices), "devices")
    for name, value in (("project_id", guest.project_id), ("user_id", guest.user_id)):
        _require(value is None or bool(_WORD.match(value)), name)
    return replace(guest, server_id=_id(guest.server_id, "server_id"))


def _checked_report(said: Report) -> Report:
    for name, number in (("run", said.run), ("epoch", said.epoch), ("took_ms", said.took_ms)):
        _require((name == "run") <= number <= NUMBER_MAX, name)
    _require(bool(_WORD.match(said.step)), "step")
    return replace(
        said,
        operation_id=_id(said.operation_id, "operation_id"),
        outputs=_checked_outputs(said.outputs),
        error=_checked_error(said.error) if said.error else None,
    )


def _checked_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """Known facts in their known form; unknown ones are a newer agent's, and dropped."""
    facts: dict[str, Any] = {}
    for name, value in outputs.items():
        if name in _FLAGS:
            _require(isinstance(value, bool), name)
            facts[name] = value
        elif name in _OUTPUTS and value is not None:
            _require(isinstance(value, str) and bool(_OUTPUTS[name].match(value)), name)
            facts[name] = value
    return facts


def _checked_error(error: StepError) -> StepError:
    """Agents mask secrets; this is the second net.  A long text is cut, not refused."""
    _require(bool(_WORD.match(error.code)), "code")
    message = " ".join(str(masked(error.message)).split())
    return replace(error, message=message[:MESSAGE_CHARS_MAX])


def _id(text: str, name: str) -> str:
    known = canonical(text)
    _require(known is not None, name)
    return str(known)


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise WireError(f"{name!r} is not as the contract has it")
