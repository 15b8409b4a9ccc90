"""/v1/events/activity and /v1/events/verification: what happens just now, and whether the log's end
is what was stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from ledger.http.call import Call, answer
from ledger.log.chain import GENESIS, BrokenChainError, ChainCheckpoint, ChainRow, Verifier
from ledger.native.log.schemas_events import Activity, ActivityQuery, Due, Period, Verification

#: Of each period: how many numbers tell of it, and of how many minutes each.
PERIODS = {Period.HOUR: (60, 1), Period.DAY: (96, 15), Period.WEEK: (84, 120)}
#: Of each kind of thing so many are counted, the newest: a busy cloud must not make it slow.
COUNTED_MAX = 10_000
#: So many events at the end of the log are verified whenever somebody asks.
VERIFIED_EVENTS = 200

#: What is counted (the query `activity`): what has begun, its outcomes, and what needs somebody.
COUNTED = (
    *("begun", "completed", "failed", "cancelled", "parked"),
    *("left_behind", "drift_found", "drift_over", "looks"),
)

#: What grows old (the query `ages`): operations that run, that are parked, and open drift.
AGING = ("under_way", "parked", "drift")


async def activity(call: Call) -> web.StreamResponse:
    """GET /v1/events/activity."""
    period = call.query(ActivityQuery).period
    numbers, each = PERIODS[period]
    queries, now = call.components.queries, datetime.fromtimestamp(call.components.clock(), UTC)
    after = await queries.position_at(now - timedelta(minutes=numbers * each))
    rows = await queries.activity(now, after, each, COUNTED_MAX)
    ages = await queries.ages(now, after, each, numbers, COUNTED_MAX)
    due = await queries.oldest_due()
    lags = [row for row in await queries.tracking() if row["held"] is None]
    return answer(
        Activity(
            at=now,
            lag_events=max((row["lag_events"] for row in lags), default=0),
            lag_s=max((row["lag_s"] for row in lags), default=0.0),
            oldest_due=Due.model_validate(due) if due else None,
            complete=all(row["count"] < COUNTED_MAX for row in rows if row["what"] == "moved"),
            period=period,
            each_minutes=each,
            minutes=_in_order(COUNTED, rows, numbers),
            ages_s=_in_order(AGING, ages, numbers),
            oldest_s=dict.fromkeys(AGING, 0)
            | {row["what"]: math.ceil(row["age_s"]) for row in ages if row["ago"] < 0},
        )
    )


def _in_order(
    kinds: Iterable[str], rows: Iterable[Mapping[str, Any]], numbers: int
) -> dict[str, list[int]]:
    """By what is counted, or grows old, so many numbers, the oldest first."""
    found = {what: [0] * numbers for what in kinds}
    for row in rows:
        ago = row["ago"]
        if row["what"] in found and 0 <= ago < numbers:
            found[row["what"]][numbers - 1 - ago] += row.get("count") or math.ceil(row["age_s"])
    return found


async def verification(call: Call) -> web.StreamResponse:
    """GET /v1/events/verification: of the newest events; of all is `event verify`'s to say."""
    queries = call.components.queries
    head = await queries.checkpoint()
    end = ChainCheckpoint(head["position"], head["chain"])
    start = GENESIS
    begin = max(end.position - VERIFIED_EVENTS, await queries.detached_to())
    if begin > 0 and (link := await queries.first_link(begin)):
        start = ChainCheckpoint(link["position"], link["chain"])
    rows = await queries.chained(start.position, end.position)
    broken: BrokenChainError | None = None
    try:
        verifier = Verifier(start)
        verifier.feed(ChainRow(row["event_bytes"], row["chain"]) for row in rows)
        verifier.finish(end)
    except BrokenChainError as error:
        broken = error
    return answer(
        Verification(
            log=head["log"],
            after=start.position,
            position=end.position,
            consistent=broken is None,
            why=str(broken) if broken else None,
        )
    )
