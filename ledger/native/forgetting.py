"""POST /v1/forget: servers whose guests have vanished, one or all of a host (decision 0071).

It is the repair of their findings (`guest_missing`), which two looks have confirmed: page by page,
each with plan and evidence, or with the operation that does it; one that is refused does not stop
the others.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

from aiohttp import web

from aggregates.errors import DomainError, NoFindingError
from handlers.drift import judge
from handlers.drift.classes import BY_NAME
from handlers.drift.rows import Key, Subject
from handlers.requests.repair import RepairDrift
from ledger.core.requests import Fleet
from ledger.http.call import Call, answer
from ledger.http.paging import page_limit
from ledger.native import accepting
from ledger.native.drift.repairs import shown
from ledger.native.drift.schemas_drift import DriftState
from ledger.native.drift.schemas_repairs import ForgetWanted, Forgotten, OneForgotten
from projections.reads.drift import DriftFilter

GUEST_MISSING = BY_NAME["guest_missing"]
_NOT_FOUND = (
    "No look has found that the guest of server {} is missing. Ask for two, a minute apart: "
    "attachment-ledger drift run --wait --server {}"
)


async def forget(call: Call) -> web.StreamResponse:
    """A dry run, unless it is to be applied."""
    body = await call.json(ForgetWanted)
    limit = page_limit(call, body.limit)
    found = [_of_server(body.server)] if body.server else await _of_host(call, body, limit)
    fleet = await accepting.fleet(call)
    servers = await accepting.each(found, lambda row: _one(call, body, row, fleet))
    if body.apply:
        await call.written((await call.components.queries.head())["position"])
    whole = not body.host or len(servers) == len(found) < limit
    following = None if whole else found[len(servers) - 1]["found_position"]
    status = HTTPStatus.ACCEPTED if body.apply else HTTPStatus.OK
    return answer(Forgotten(servers=servers, next=following), status)


def _of_server(server_id: str) -> dict[str, Any]:
    """Whether there is such a finding, the log says."""
    key = Key(subject=Subject.SERVER, id=server_id)
    return {"server_id": server_id, "finding_id": judge.finding_id(GUEST_MISSING, key)}


async def _of_host(call: Call, body: ForgetWanted, limit: int) -> list[dict[str, Any]]:
    wanted = DriftFilter(drift_class=GUEST_MISSING.name, host=body.host)
    state = DriftState.CONFIRMED
    return await call.components.queries.drift(wanted, state=state, limit=limit, after=body.after)


async def _one(call: Call, body: ForgetWanted, row: dict[str, Any], fleet: Fleet) -> OneForgotten:
    request = RepairDrift(finding_id=str(row["finding_id"]), reason=body.reason)
    ids = {"server_id": row["server_id"], "finding_id": row["finding_id"]}
    requests, context = call.components.requests, call.context("operator")
    try:
        if body.apply:
            done = await call.ask_cinder(lambda: requests.repair(request, context, fleet))
            return OneForgotten(**ids, operation_id=UUID(done.operation_id))
        plan = await call.ask_cinder(lambda: requests.propose(request, context, fleet))
    except NoFindingError:
        return OneForgotten(**ids, refused=_NOT_FOUND.format(*[row["server_id"]] * 2))
    except DomainError as refused:
        return OneForgotten(**ids, refused=str(refused))
    return OneForgotten(**ids, plan=shown(*plan))
