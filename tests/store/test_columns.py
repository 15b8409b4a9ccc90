"""The check of rows without a database says what the database would."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from projections.base import Row
from tests.store.columns import misfits

VOLUME = "7c7f0b2e-5d0f-4a3b-9a3e-0f1d2c3b4a59"
PARKED: Row = {
    "operation_id": str(uuid4()),
    "from_position": 7,
    "to_position": None,
    "from_at": datetime.now(UTC),
    "to_at": None,
    "times": 1,
    "flow": "attach",
    "server_id": str(uuid4()),
    "volume_id": None,
    "host": "compute-1",
    "left_steps": [],
}


def taken(db: psycopg.Connection[Any], row: Row) -> bool:
    row = {**row, "left_steps": row["left_steps"] and Jsonb(row["left_steps"])}
    names, places = ", ".join(row), ", ".join(["%s"] * len(row))
    try:
        db.execute(f"INSERT INTO parked ({names}) VALUES ({places})".encode(), [*row.values()])
    except psycopg.Error:
        return False
    return True


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"volume_id": VOLUME},
        {"volume_id": ""},
        {"volume_id": "vdb"},
        {"server_id": None},
        {"host": None},
        {"flow": None},
        {"from_position": None},
        {"from_position": "first"},
        {"to_at": "2026-01-01T00:00:00+00:00"},
        {"to_at": "tomorrow's"},
        {"nobody_knows": 1},
    ],
    ids=str,
)
def test_a_row_is_a_misfit_where_the_table_refuses_it(
    changed: Row, db: psycopg.Connection[Any]
) -> None:
    row = {**PARKED, **changed}
    assert (not list(misfits("parked", row))) is taken(db, row)
