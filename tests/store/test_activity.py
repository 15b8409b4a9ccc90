"""What pages of now ask reads what they show, however much there is besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import sql

#: Operations that were over long ago, that moved in the last hour, and that are counted of those.
OLD, MOVED, MOST = 50_000, 10_000, 1_000
AFTER = 1_000_000


@pytest.fixture
def filled(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    db.execute(
        """INSERT INTO operations (operation_id, flow, server_id, volume_ids, state, lanes, steps,
               unwinding, bound, request_id, started_at, started_position, due_at, updated_at,
               position, pivot_passed, host, destination)
           SELECT gen_random_uuid(), 'attach', gen_random_uuid(), '{}',
                  CASE WHEN n > %(old)s THEN 'running' ELSE 'finished' END,
                  '[]', '[]', false, true, 'req', now(), n,
                  CASE WHEN n > %(old)s THEN now() END, now(),
                  n + CASE WHEN n > %(old)s THEN %(after)s ELSE 0 END, false,
                  CASE WHEN n %% 25000 = 1 THEN 'quiet' ELSE 'busy-' || n %% 9 END,
                  CASE WHEN n %% 25000 = 2 THEN 'quiet' END
             FROM generate_series(1, %(old)s + %(moved)s) AS n""",
        {"old": OLD, "moved": MOVED, "after": AFTER},
    )
    db.execute("ANALYZE operations")
    return db


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)


def reads(filled: psycopg.Connection[Any], query: str, asked: Any) -> list[dict[str, Any]]:
    """How the table is read."""
    text = sql.query("reads", query)
    cursor = filled.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + text.rstrip().rstrip(b";"), asked)
    [(found,)] = cursor.fetchall()
    read = [each for each in scans(found[0]["Plan"]) if each["Relation Name"] == "operations"]
    assert read
    return read


def test_an_overview_reads_what_it_counts(filled: psycopg.Connection[Any]) -> None:
    for query, rows_max in (("activity", MOST), ("ages", MOST), ("oldest_due", 1)):
        asked = {"now": "2026-01-31T12:00:00Z", "after": AFTER, "each": 1, "most": MOST}
        asked["numbers"] = 60
        for each in reads(filled, query, asked):
            assert each["Node Type"].startswith("Index"), each
            assert each["Actual Rows"] * each["Actual Loops"] <= rows_max, each
            assert each.get("Rows Removed by Filter", 0) == 0, each


def test_of_a_host_only_its_own_are_read(filled: psycopg.Connection[Any]) -> None:
    """Also of one that has few among very many."""
    for host in ("quiet", "busy-3"):
        nothing = dict.fromkeys(("state", "flow", "server_id", "volume_id", "after"))
        for each in reads(filled, "operations", {**nothing, "host": host, "limit": 20}):
            rows = each["Actual Rows"] + each.get("Rows Removed by Filter", 0)
            assert rows * each["Actual Loops"] <= 500, each
