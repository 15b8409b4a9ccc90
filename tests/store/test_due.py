"""Taking what is due costs what is taken, however much else is due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
import pytest

import sql

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
        "INSERT INTO leases SELECT operation_id, 'other', now() + interval '1 hour'"
        " FROM operations ORDER BY due_at LIMIT %s",
        [LEASED],
    )
    if statistics == "as it is":
        db.execute("ANALYZE operations, leases")
    explain = cast("Any", "EXPLAIN (ANALYZE, FORMAT JSON) " + sql.query("reads", "due").decode())
    wanted = {"now": datetime.now(UTC), "limit": LIMIT, "holder": "me", "lease_s": 10.0}
    [[[document]]] = db.execute(explain, wanted).fetchall()
    scans = [node for node in nodes(document["Plan"]) if node.get("Relation Name") == "operations"]
    assert [scan["Index Name"] for scan in scans] == ["operations_due"]
    assert scans[0]["Actual Rows"] <= LEASED + LIMIT
    taken = "SELECT count(*), max(o.due_at) FROM leases JOIN operations AS o USING (operation_id)"
    [(count, latest)] = db.execute(f"{taken} WHERE holder = 'me'").fetchall()
    [(passed,)] = db.execute(
        "SELECT count(*) FROM operations WHERE due_at <= %s", [latest]
    ).fetchall()
    assert (count, passed) == (LIMIT, LEASED + LIMIT), "the longest due that nobody is at"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
