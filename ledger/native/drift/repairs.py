"""POST /v1/drift/{id}/repair: what would be done, and on `apply` doing it (decision 0059)."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from aiohttp import web

from aggregates.finding import Finding
from aggregates.operation import Operation
from handlers.drift.classes import BY_NAME
from handlers.drift.repairs import REPAIRS
from handlers.engine.plan import Place, plan_of
from handlers.engine.verbs import VERBS
from handlers.requests.repair import RepairDrift
from ledger.core.requests import Fleet
from ledger.http.call import Call, answer
from ledger.native import accepting
from ledger.native.drift.findings import NO_FINDING
from ledger.native.drift.schemas_repairs import RepairAccepted, RepairProposed, RepairStep


async def repair(call: Call, *, reason: str, apply: bool, repair: str | None) -> web.StreamResponse:
    """A dry run, unless it is to be applied."""
    finding_id = call.id("finding_id", NO_FINDING)
    request = RepairDrift(finding_id=finding_id, reason=reason, repair=repair)
    fleet = await accepting.fleet(call)
    if not apply:
        return answer(await _proposed(call, request, fleet))
    key, context = accepting.idempotency_key(call), call.context("operator")
    done = await accepting.accepted(
        call,
        lambda: call.components.requests.repair(request, context, fleet, key),
        asks_cinder=True,
    )
    begun = RepairAccepted.model_validate(
        {"finding_id": finding_id, "operation_id": done.operation_id}
    )
    return answer(begun, HTTPStatus.ACCEPTED, accepting.headers(done.operation_id))


async def _proposed(call: Call, request: RepairDrift, fleet: Fleet) -> RepairProposed:
    requests, context = call.components.requests, call.context("operator")
    operation, finding = await call.ask_cinder(lambda: requests.propose(request, context, fleet))
    return shown(operation, finding)


def shown(operation: Operation, finding: Finding) -> RepairProposed:
    """What the operation would do, by what evidence."""
    assert finding.found is not None, "only what was found is repaired"
    drift, plan = BY_NAME[finding.found.drift_class], plan_of(operation)
    assert drift.repair is not None, "it was accepted"
    hosts = {lane.host for lane in plan.lanes} | {plan.hosts.get(Place.HOST)}
    return RepairProposed.model_validate(
        {
            "finding_id": str(finding.id),
            "drift_class": drift.name,
            "meaning": drift.meaning,
            "flow": plan.flow,
            "steps": list(_steps(operation)),
            "asks_again": [party.value for party in drift.again],
            "hosts": sorted(host for host in hosts if host),
            "differs": finding.differs,
            "never": REPAIRS[plan.flow].never,
        }
    )


def _steps(operation: Operation) -> Iterator[RepairStep]:
    """In order; a step that several hosts do, for each of them."""
    plan = plan_of(operation)
    for stage in plan.stages:
        for step in stage.steps:
            hosts = [plan.host_of(lane, stage.place) for lane in plan.lanes_of(stage)]
            places = [host or "ledger" for host in hosts]
            for place in dict.fromkeys(places):
                yield RepairStep(
                    step=step.name, verb=step.do.value, place=place, does=VERBS[step.do].words
                )
