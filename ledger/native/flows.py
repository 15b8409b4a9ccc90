"""/v1/flows: the tables of the product, as data."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from aiohttp import web

from handlers.engine.plan import Flow
from handlers.flows import FLOWS
from ledger.http.call import Call, answer
from ledger.http.problem import ApiError
from ledger.native.schemas import FlowShown, FlowsShown


async def flows(_: Call) -> web.StreamResponse:
    """GET /v1/flows."""
    return answer(FlowsShown(flows=[_shown(flow) for flow in FLOWS.values()]))


async def flow(call: Call) -> web.StreamResponse:
    """GET /v1/flows/{name}."""
    name = call.request.match_info["name"]
    if name not in FLOWS:
        raise unknown_flow(404, "flow_not_found", name)
    return answer(_shown(FLOWS[name]))


def unknown_flow(status: int, code: str, name: str) -> ApiError:
    hint = "All of them: flow list, or GET /v1/flows."
    return ApiError(status, code, f"There is no flow {name[:64]!r}.", hint=hint)


def _shown(flow: Flow) -> FlowShown:
    summary = (inspect.getdoc(_module_of(flow)) or "").partition("\n")[0]
    stages = [
        {
            "place": stage.place.value,
            "side": stage.side.value,
            "once": stage.once,
            "of": stage.of and stage.of.value,
            "steps": [
                {"name": step.name, "do": step.do.value, "undo": step.undo and step.undo.value}
                for step in stage.steps
            ],
        }
        for stage in flow.stages
    ]
    return FlowShown(
        name=flow.name,
        pivot=flow.pivot,
        exclusive=flow.exclusive,
        patient=flow.patient,
        summary=summary,
        stages=stages,
    )


def _module_of(flow: Flow) -> ModuleType:
    """The file that the flow's table is in."""
    return next(
        module
        for name, module in sys.modules.items()
        if name.startswith("handlers.flows.") and flow in vars(module).values()
    )
