"""What tests of projectors and of the runner share."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import psycopg

from aggregates.host import Host, host_uuid
from ledger.log.application import Ledger
from projections.base import LoggedEvent, Projection, Row
from projections.hosts import HOSTS


def register(ledger: Ledger, name: str, version: int = 1) -> int:
    host = ledger.load(Host, host_uuid(name))
    host.register(name, version, {})
    return ledger.save(host)


def tracked(db: psycopg.Connection[Any], name: str) -> int:
    row = db.execute("SELECT position FROM tracking WHERE projection = %s", (name,)).fetchone()
    return int(row[0]) if row else 0


def wait_until(condition: Any, deadline_s: float = 30) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


def poisoned(position: int) -> Projection:
    def fold(row: Row | None, event: LoggedEvent) -> Any:
        if event.position == position:
            raise ValueError("cannot fold this")
        return HOSTS.fold(row, event)

    return replace(HOSTS, fold=fold)
