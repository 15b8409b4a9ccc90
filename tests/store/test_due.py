"""Taking what is due costs what is taken, however much else is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest

import sql
from handlers.engine.verbs import PUT_OFF_MAX_S
from projections.reads.queries import Queries, read_pool

DUE, LEASED, LIMIT = 3_000, 40, 16
#: A row of `operations`, due since so many seconds as its number says.
OPERATION = """
INSERT INTO operations (
    operation_id, flow, server_id, volume_ids, state, lanes, steps, unwinding, pivot_passed,
    bound, request_id, started_at, started_position, due_at, updated_at, position)
SELECT gen_random_uuid(), 'attach', gen_random_uuid(), '{}', 'running', '[]', '[]', false, false,
       false, 'r', now(), n,
       now() - n * interval '1 second', now(), n
  FROM generate_series(1, %s) AS n
"""


@pytest.mark.parametrize("statistics", ["of a quiet day", "as it is"])
def test_what_is_due_is_read_no_further_than_leases_have_to_be_passed(
    db: psycopg.Connection[Any], statistics: str
) -> None:
    """Also right after a storm has begun, when the planner believes that nothing is due."""
    if statistics == "of a quiet day":
        db.execute(OPERATION, [DUE])
        db.execute("UPDATE operations SET due_at = NULL")
        db.execute("VACUUM ANALYZE operations, leases")
    db.execute(OPERATION, [DUE])
    db.execute(
        "INSERT INTO leases SELECT operation_id, 'other', now() + interval '10 s'"
        " FROM operations ORDER BY due_at LIMIT %s",
        [LEASED],
    )
    if statistics == "as it is":
        db.execute("ANALYZE operations, leases")
    explain = cast("Any", "EXPLAIN (ANALYZE, FORMAT JSON) " + sql.query("reads", "due").decode())
    wanted = {"limit": LIMIT, "holder": "me", "lease_s": 10.0, "put_off_max_s": PUT_OFF_MAX_S}
    wanted["but"] = []
    [[[document]]] = db.execute(explain, wanted).fetchall()
    scans = [node for node in nodes(document["Plan"]) if node.get("Relation Name") == "operations"]
    assert [scan["Index Name"] for scan in scans] == ["operations_due", "operations_due"]
    assert scans[0]["Actual Rows"] <= LEASED + LIMIT
    assert scans[1]["Actual Rows"] == scans[1].get("Rows Removed by Filter", 0) == 0
    taken = "SELECT count(*), max(o.due_at) FROM leases JOIN operations AS o USING (operation_id)"
    [(count, latest)] = db.execute(f"{taken} WHERE holder = 'me'").fetchall()
    [(passed,)] = db.execute(
        "SELECT count(*) FROM operations WHERE due_at <= %s", [latest]
    ).fetchall()
    assert (count, passed) == (LIMIT, LEASED + LIMIT), "the longest due that nobody is at"


@pytest.mark.parametrize(
    ("due_in_s", "put_off_s", "free"),
    [
        (-5, 0, True),
        (5, 5, False),
        (PUT_OFF_MAX_S - 5, 60, False),
        (PUT_OFF_MAX_S + 5, 60, True),
        (7_203, 3, True),
        (45, 0, True),
    ],
    ids=["past", "put off", "for long", "too long to be", "by a clock 2 h ahead", "due at once"],
)
async def test_a_clock_that_was_set_back_puts_nothing_off(
    db: psycopg.Connection[Any],
    database_url: str,
    due_in_s: float,
    put_off_s: float,
    free: bool,
) -> None:
    db.execute(OPERATION, [1])
    db.execute(
        "UPDATE operations SET due_at = now() + make_interval(secs => %s),"
        " updated_at = now() + make_interval(secs => %s)",
        [due_in_s, due_in_s - put_off_s],
    )
    async with read_pool(database_url) as pool:
        assert bool(await Queries(pool).due(10, "me", 10)) == free


@pytest.mark.parametrize(
    ("until_s", "free"), [(-1, True), (5, False), (7_210, True)], ids=["over", "held", "ahead"]
)
async def test_a_lease_of_a_clock_that_was_set_back_is_nobodys(
    db: psycopg.Connection[Any], database_url: str, until_s: float, free: bool
) -> None:
    db.execute(OPERATION, [1])
    db.execute(
        "INSERT INTO leases SELECT operation_id, 'dead', now() + make_interval(secs => %s)"
        " FROM operations",
        [until_s],
    )
    async with read_pool(database_url) as pool:
        assert [taken_over for *_, taken_over in await Queries(pool).due(10, "me", 10)] == [
            True
        ] * (free)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
