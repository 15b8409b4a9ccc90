"""/v1/drift: what ledger, Cinder and hosts say differently, and what people do about it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from aiohttp import web

from aggregates.base import About
from aggregates.finding import UNTIL_MAX_S, FindingState
from aggregates.operation import Operation
from aggregates.remnant import Remnant
from handlers.drift.beside_words import KINDS, NOVA
from handlers.drift.classes import BY_NAME, CLASSES, DriftClass, subject_of
from handlers.drift.recheck import cannot
from ledger.http import redaction
from ledger.http.call import Call, answer, refuse_to_come
from ledger.http.paging import page_limit
from ledger.http.problem import ApiError, not_found
from ledger.http.redaction import redacted
from ledger.native.drift.schemas_drift import (
    Drift,
    DriftClasses,
    DriftClassShown,
    DriftQuery,
    DriftState,
    FindingDetails,
    FindingQuery,
    FindingShown,
)
from ledger.native.log.schemas_events import EventShown
from ledger.native.scope import refuse_foreign_server, refuse_host_filter, refuse_past
from projections.findings import FINDINGS
from projections.reads.drift import DriftFilter
from projections.remnants import REMNANTS

Row = dict[str, Any]

#: Of a finding's history, so many events are shown.
HISTORY_MAX = 100

NO_FINDING = "Finding {} could not be found."
#: What happens to a finding, and to what the log itself says to be somebody's turn.
_HISTORY = {
    *FINDINGS.topics,
    *REMNANTS.topics,
    Operation.Parked.TOPIC,
    Operation.RetryRequested.TOPIC,
    Operation.StepSkipped.TOPIC,
    Operation.UnwindRequested.TOPIC,
    Operation.OperationFinished.TOPIC,
}
#: What to do instead of ignoring what looks do not find.
_SETTLED_BY = {
    Remnant: "See to it, then: attachment-ledger remnant acknowledge {id} --reason TEXT",
    Operation: "See what may be done: attachment-ledger operation show {id}",
}
_FACTS: dict[str, type[Any]] = {"remnant": Remnant, "operation_parked": Operation}


async def drift(call: Call) -> web.StreamResponse:
    """GET /v1/drift, newest first: what is open now, or what differed at a moment."""
    query = call.query(DriftQuery)
    if query.at is not None:
        refuse_past(call)
    if query.at is not None and query.state is not None:
        raise ApiError(400, "invalid", "With 'at', leave 'state' out: all that differed is shown.")
    refuse_unknown(query.drift_class)
    await refuse_foreign_server(call, query.server)
    refuse_host_filter(call, query.host)
    limit = page_limit(call, query.limit)
    wanted = DriftFilter(
        drift_class=query.drift_class,
        severity=query.severity,
        server_id=query.server,
        volume_id=query.volume,
        host=query.host,
    )
    queries = call.components.queries
    if query.at is not None:
        await refuse_to_come(call, query.at)
        found = await queries.drift_at(query.at, wanted, limit=limit, after=query.after)
    else:
        state = query.state or DriftState.OPEN
        found = await queries.drift(wanted, state=state, limit=limit, after=query.after)
    last = found[-1]["found_position"] if len(found) == limit else None
    shown = [FindingShown.model_validate(_shown(call, row)) for row in found]
    return answer(Drift(at=query.at, findings=shown, next=last))


async def finding(call: Call) -> web.StreamResponse:
    """GET /v1/drift/{id}: also when it is over; or as it was known at a moment."""
    at = call.query(FindingQuery).at
    if at is not None:
        refuse_past(call)
        await refuse_to_come(call, at)
    return await _answer(call, await _row(call, at), at)


async def ignore(call: Call, *, reason: str, until: datetime | None) -> web.StreamResponse:
    """POST ignore: the difference is to stay, for a while or for good."""
    row = await _row(call)
    _refuse_fact(row)
    until_s = None if until is None else min(until.timestamp(), UNTIL_MAX_S)
    if until_s is not None and until_s <= call.components.clock():
        raise ApiError(400, "moment_over", "'until' must be in the future.")
    _refuse_unless(row, row["state"] != FindingState.OVER, "is over: there is nothing to ignore.")
    await call.operate(call.components.findings.ignore, row["finding_id"], reason, until_s)
    return await _answer(call, await _row(call))


async def unignore(call: Call, *, reason: str) -> web.StreamResponse:
    """POST unignore: it is ignored no longer; the next look that sees it confirms it."""
    row = await _row(call)
    _refuse_fact(row)
    _refuse_unless(row, row["state"] == FindingState.IGNORED, "is not ignored.")
    await call.operate(call.components.findings.unignore, row["finding_id"], reason)
    return await _answer(call, await _row(call))


async def classes(_: Call) -> web.StreamResponse:
    """GET /v1/drift/classes: all that can differ."""
    return answer(DriftClasses(classes=[_class_shown(each) for each in CLASSES]))


# ------------------------------------------------------------------------------- parts


async def _row(call: Call, at: datetime | None = None) -> Row:
    """The finding of the path, if it exists for the caller, or did.  ApiError 404."""
    finding_id = call.id("finding_id", NO_FINDING)
    row = await call.components.queries.drift_one(finding_id, at)
    if row is None or not call.sees(row["owner_id"]):
        raise not_found("finding_not_found", NO_FINDING.format(finding_id))
    return row


def refuse_unknown(drift_class: str | None) -> None:
    """What is no name of a class.  ApiError 400."""
    if drift_class is not None and drift_class not in BY_NAME:
        raise ApiError(
            400,
            "invalid",
            f"There is no class of drift {drift_class}.",
            hint="All of them: drift classes, or GET /v1/drift/classes.",
        )


def _refuse_fact(row: Row) -> None:
    """What the log itself says is ended by what it says, and cannot be ignored (decision 0058)."""
    kind = _FACTS.get(row["drift_class"])
    if kind is not None:
        raise ApiError(
            409,
            "not_ignorable",
            f"This finding is a fact of the log and cannot be ignored: it ends when an operator "
            f"deals with {kind.__name__.lower()} {row['finding_id']}.",
            hint=_SETTLED_BY[kind].format(id=row["finding_id"]),
        )


def _refuse_unless(row: Row, so: bool, what: str) -> None:
    if not so:
        raise ApiError(409, "finding_state", f"Finding {row['finding_id']} {what}")


async def _answer(call: Call, row: Row, at: datetime | None = None) -> web.StreamResponse:
    """With what its class says, and its history; what is past (`at`) is not acted on."""
    shown, known = _shown(call, row), BY_NAME.get(row["drift_class"])
    events = await call.components.queries.events(
        ("originator_id", row["finding_id"]), at=at, limit=HISTORY_MAX, newest_first=True
    )
    history = [
        EventShown.model_validate(redacted(call.identity, redaction.event, event))
        for event in reversed(events)
        if event["topic"] in _HISTORY
    ]
    details = {
        "meaning": _meaning(row, known),
        "by_hand": (_cannot(row, known) or known.by_hand or None) if known else None,
        "acts": _acts(row, known) if call.identity.everywhere and at is None else [],
        "history": history,
    }
    return answer(FindingDetails.model_validate({**shown, **details}))


def _meaning(row: Row, known: DriftClass | None) -> str:
    if known is None:
        return "A class of drift of another version."
    return (KINDS if NOVA in (row["differs"] or {}) else BY_NAME)[known.name].meaning


def _shown(call: Call, row: Row) -> Row:
    known = BY_NAME.get(row["drift_class"])
    repair = known.repair if known and not _cannot(row, known) else None
    return {**redacted(call.identity, redaction.finding, row), "repair": repair}


def _acts(row: Row, known: DriftClass | None) -> list[str]:
    """What a person may do about it now; the log has the last word."""
    if row["state"] == FindingState.OVER or row["repairing"] is not None:
        return []
    if row["drift_class"] in _FACTS:
        return ["acknowledge"] if _FACTS[row["drift_class"]] is Remnant else ["operation"]
    if row["state"] == FindingState.IGNORED:
        return ["unignore"]
    repairable = row["state"] == FindingState.CONFIRMED and known and known.repair
    if known and _cannot(row, known):
        return ["ignore"]
    return ["repair", "ignore"] if repairable else ["ignore"]


def _cannot(row: Row, known: DriftClass) -> str | None:
    """Why its repair would do nothing, and what to do instead."""
    names = ("server_id", "volume_id", "attachment_id")
    ids = {name: str(row[name]) if row[name] else None for name in names}
    about = About(**ids, host=row["host"])
    resized = bool(row.get("resized"))  # what is past is not acted on
    return cannot(known, row["key"], row["differs"] or {}, about, resized=resized)


def _class_shown(each: DriftClass) -> DriftClassShown:
    return DriftClassShown(
        name=each.name,
        subject=subject_of(each),
        compares=[party.value for party in each.parties],
        severity=each.severity,
        meaning=each.meaning,
        repair=each.repair,
        or_else=each.or_else,
        by_hand=each.by_hand or None,
        again=[party.value for party in each.again],
    )
