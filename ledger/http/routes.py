"""Every route of the service: the table of contents of the API.

The application, the policy check and the OpenAPI document are all made from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from aiohttp import web

from host_agent.shared.contract import messages as contract
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.survey import Survey, SurveyAnswer, SurveySent
from ledger.agents import calls as agents
from ledger.http import schemas as shared
from ledger.http import versions
from ledger.http.call import Call
from ledger.http.openapi import document
from ledger.http.probes import health
from ledger.http.route import AGENT_RULE, IDEMPOTENT, Route, get
from ledger.native import (
    acts,
    attachments,
    builds,
    flows,
    forgetting,
    hosts,
    operations,
    schemas,
    schemas_attachments,
    schemas_servers,
)
from ledger.native.drift import remnants, schemas_remnants, schemas_repairs
from ledger.native.drift.routes_drift import DRIFT
from ledger.native.log import (
    activity,
    events,
    find,
    past,
    refusals,
    schemas_events,
    schemas_find,
    schemas_refusals,
)
from ledger.native.log.cloud_events import BATCH_MEDIA_TYPE
from ledger.nova import schemas_nova
from ledger.nova.routes_nova import NOVA


async def _openapi(call: Call) -> web.StreamResponse:
    """GET /openapi.json: what this table and its models say."""
    del call
    return web.Response(body=_document(), content_type="application/json")


@lru_cache(maxsize=1)
def _document() -> bytes:
    return orjson.dumps(document(ROUTES))


_ROOT = (
    get("versions", "/", versions.versions, schemas_nova.Versions, rules=()),
    get("health", "/healthz", health.health, shared.Health, rules=()),
    Route(
        name="ready",
        method="GET",
        path="/readyz",
        handler=health.ready,
        query=shared.ReadyQuery,
        answers={200: shared.Health, 503: shared.Health},
        rules=(),
    ),
    get("metrics", "/metrics", health.metrics, "text/plain", rules=()),
    get("openapi", "/openapi.json", _openapi, "application/json", rules=()),
)

_OWN_SERVERS = (
    Route(
        name="server_build",
        method="POST",
        path="/v1/servers",
        handler=builds.build,
        body=schemas_servers.Build,
        answers={202: schemas_servers.Started},
        headers=IDEMPOTENT,
        rules=("attachment-ledger:servers:build",),
    ),
    Route(
        name="server_refresh",
        method="POST",
        path="/v1/servers/{server_id}/refresh",
        handler=builds.server_refresh,
        answers={202: schemas_servers.Started},
        headers=IDEMPOTENT,
        rules=("attachment-ledger:servers:refresh",),
    ),
    Route(
        name="server_convert",
        method="POST",
        path="/v1/servers/{server_id}/convert",
        handler=builds.server_convert,
        answers={202: schemas_servers.Started},
        headers=IDEMPOTENT,
        rules=("attachment-ledger:servers:convert",),
    ),
    Route(
        name="refresh",
        method="POST",
        path="/v1/refresh",
        handler=builds.refresh,
        body=schemas_servers.Many,
        answers={202: schemas_servers.ManyBegun},
        rules=("attachment-ledger:servers:refresh",),
    ),
    Route(
        name="convert",
        method="POST",
        path="/v1/convert",
        handler=builds.convert,
        body=schemas_servers.Many,
        answers={202: schemas_servers.ManyBegun},
        rules=("attachment-ledger:servers:convert",),
    ),
    Route(
        name="forget",
        method="POST",
        path="/v1/forget",
        handler=forgetting.forget,
        body=schemas_repairs.ForgetWanted,
        answers={200: schemas_repairs.Forgotten, 202: schemas_repairs.Forgotten},
        rules=("attachment-ledger:servers:forget",),
    ),
)

_OWN = (
    get(
        "find",
        "/v1/find",
        find.find,
        schemas_find.FoundThings,
        query=schemas_find.FindQuery,
        rules=("attachment-ledger:find",),
    ),
    get(
        "operations",
        "/v1/operations",
        operations.operations,
        schemas.Operations,
        query=schemas.OperationsQuery,
        rules=("attachment-ledger:operations:list",),
    ),
    get(
        "operation",
        "/v1/operations/{operation_id}",
        operations.operation,
        schemas.OperationShown,
        query=schemas.OperationQuery,
        rules=("attachment-ledger:operations:show",),
    ),
    get(
        "remnants",
        "/v1/remnants",
        remnants.remnants,
        schemas_remnants.Remnants,
        query=schemas_remnants.RemnantsQuery,
        rules=("attachment-ledger:remnants:list",),
    ),
    get(
        "attachments",
        "/v1/attachments",
        attachments.attachments,
        schemas_attachments.AttachmentsAnswer,
        query=schemas_attachments.AttachmentsQuery,
        rules=("attachment-ledger:attachments:list",),
    ),
    get(
        "attachment",
        "/v1/attachments/{attachment_id}",
        attachments.attachment,
        schemas_attachments.AttachmentShown,
        rules=("attachment-ledger:attachments:show",),
    ),
    get(
        "request",
        "/v1/requests/{refused_id}",
        refusals.request,
        schemas_refusals.RefusalShown,
        rules=("attachment-ledger:requests:show",),
    ),
    get(
        "hosts",
        "/v1/hosts",
        hosts.hosts,
        schemas.Hosts,
        query=schemas.HostsQuery,
        rules=("attachment-ledger:hosts:list",),
    ),
    get(
        "host",
        "/v1/hosts/{host}",
        hosts.host,
        schemas.HostShown,
        rules=("attachment-ledger:hosts:show",),
    ),
    get(
        "flows",
        "/v1/flows",
        flows.flows,
        schemas.FlowsShown,
        rules=("attachment-ledger:flows:list",),
    ),
    get(
        "flow",
        "/v1/flows/{name}",
        flows.flow,
        schemas.FlowShown,
        rules=("attachment-ledger:flows:show",),
    ),
)


def _history(name: str, path: str, handler: Any, *, rules: tuple[str, ...]) -> Route:
    answer, query = schemas_events.Events, schemas.HistoryQuery
    return get(name, f"{path}/history", handler, answer, query=query, rules=rules)


_LOG = (
    _history(
        "volume_history",
        "/v1/volumes/{volume_id}",
        events.volume_history,
        rules=("attachment-ledger:volumes:history",),
    ),
    _history(
        "server_history",
        "/v1/servers/{server_id}",
        events.server_history,
        rules=("attachment-ledger:servers:history",),
    ),
    _history(
        "attachment_history",
        "/v1/attachments/{attachment_id}",
        events.attachment_history,
        rules=("attachment-ledger:attachments:history",),
    ),
    _history(
        "operation_history",
        "/v1/operations/{operation_id}",
        events.operation_history,
        rules=("attachment-ledger:operations:history",),
    ),
    _history(
        "host_history",
        "/v1/hosts/{host}",
        events.host_history,
        rules=("attachment-ledger:hosts:history",),
    ),
    Route(
        name="history_import",
        method="POST",
        path="/v1/history/import",
        handler=past.import_past,
        body=schemas_events.DeletedRows,
        answers={200: schemas_events.RowsRecorded},
        rules=("attachment-ledger:history:import",),
    ),
    get(
        "events",
        "/v1/events",
        events.events,
        schemas_events.Events,
        query=schemas.EventsQuery,
        rules=("attachment-ledger:events:list",),
        formats=(BATCH_MEDIA_TYPE,),
    ),
    get(
        "event_checkpoint",
        "/v1/events/checkpoint",
        events.event_checkpoint,
        schemas_events.CheckpointShown,
        rules=("attachment-ledger:events:checkpoint",),
    ),
    get(
        "event_verification",
        "/v1/events/verification",
        activity.verification,
        schemas_events.Verification,
        rules=("attachment-ledger:events:checkpoint",),
    ),
    get(
        "event_activity",
        "/v1/events/activity",
        activity.activity,
        schemas_events.Activity,
        query=schemas_events.ActivityQuery,
        rules=("attachment-ledger:events:list",),
    ),
    get(
        "event_stream",
        "/v1/events/stream",
        events.event_stream,
        "text/event-stream",
        query=schemas.StreamQuery,
        rules=("attachment-ledger:events:stream",),
    ),
)

_AGENT = (
    Route(
        name="host_register",
        method="PUT",
        path="/v1/hosts/{host}",
        handler=agents.register,
        body=contract.Registration,
        answers={200: contract.Registered},
        rules=(AGENT_RULE,),
    ),
    Route(
        name="host_guests",
        method="POST",
        path="/v1/hosts/{host}/guests",
        handler=agents.guests,
        body=Changes,
        answers={200: contract.Again},
        rules=(AGENT_RULE,),
    ),
    get(
        "host_commands",
        "/v1/hosts/{host}/commands",
        agents.commands,
        contract.Commands,
        query=agents.CommandsQuery,
        rules=(AGENT_RULE,),
    ),
    Route(
        name="host_reports",
        method="POST",
        path="/v1/hosts/{host}/reports",
        handler=agents.reports,
        body=contract.Report,
        answers={200: contract.Taken},
        rules=(AGENT_RULE,),
    ),
    Route(
        name="host_survey",
        method="PUT",
        path="/v1/hosts/{host}/survey",
        handler=agents.survey,
        body=(SurveyAnswer, Survey),
        answers={200: contract.Again},
        rules=(AGENT_RULE,),
    ),
    Route(
        name="host_survey_sent",
        method="PUT",
        path="/v1/hosts/{host}/survey/sent",
        handler=agents.survey_sent,
        body=(SurveySent, Survey),
        answers={200: contract.Again},
        rules=(AGENT_RULE,),
    ),
    Route(
        name="host_progress",
        method="POST",
        path="/v1/hosts/{host}/progress",
        handler=agents.progress,
        body=contract.Progress,
        answers={204: None},
        rules=(AGENT_RULE,),
    ),
    get(
        "host_volume_users",
        "/v1/hosts/{host}/volumes/{volume_id}/users",
        agents.volume_users,
        contract.Users,
        query=agents.UsersQuery,
        rules=(AGENT_RULE,),
    ),
)

# Agents ask most: of the paths below one prefix, the router tries the first ones first.
ROUTES: tuple[Route, ...] = (
    *_ROOT,
    *_AGENT,
    *NOVA,
    *_OWN,
    *_OWN_SERVERS,
    *DRIFT,
    *acts.ROUTES,
    *_LOG,
)
