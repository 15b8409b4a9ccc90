"""Events and their stored form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson
import psycopg
import pytest

from aggregates.base import About, Aggregate, Event
from ledger.log.application import Ledger
from ledger.log.mapper import IndexedEvent, JSONBody, LedgerMapper


class Renamed(Event):
    """Its third form; the first had `a`, the second `b`."""

    c: int
    class_version = 3

    @staticmethod
    def upcast_v1_v2(state: dict[str, Any]) -> None:
        state["b"] = state.pop("a") * 10

    @staticmethod
    def upcast_v2_v3(state: dict[str, Any]) -> None:
        state["c"] = state.pop("b") + 1


class Thing(Aggregate):
    def __init__(self, id: Any) -> None:  # noqa: A002
        super().__init__(id)
        self.seen: list[int] = []

    def about(self) -> About:
        return About(host="h")

    def apply(self, event: Any) -> None:
        self.seen.append(event.c)


def test_the_body_is_what_the_class_declares_and_nothing_else() -> None:
    event = Renamed(originator_id=uuid4(), originator_version=1, about=About(host="h"), c=5)
    stored = LedgerMapper(JSONBody()).to_stored_event(event)
    assert orjson.loads(stored.state) == {"c": 5, "class_version": 3}
    assert stored.topic == "Renamed"
    assert stored.about == About(host="h")


@pytest.mark.parametrize(
    ("body", "c"),
    [({"a": 1}, 11), ({"b": 7, "class_version": 2}, 8), ({"c": 5, "class_version": 3}, 5)],
)
def test_events_of_every_stored_form_are_read_in_the_newest(
    ledger: Ledger, body: dict[str, Any], c: int
) -> None:
    id_ = uuid4()
    ledger.recorder.insert_events([IndexedEvent(id_, 1, "Renamed", orjson.dumps(body))])
    thing = ledger.load(Thing, id_)
    assert (thing.seen, thing.version) == ([c], 1)


def test_what_is_loaded_equals_what_was_recorded(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    thing = Thing(uuid4())
    thing.record(Renamed, c=1)
    thing.record(Renamed, c=2)
    ledger.save(thing)
    assert ledger.load(Thing, thing.id).seen == thing.seen == [1, 2]
    rows = db.execute("SELECT host, body ->> 'c' FROM event_log ORDER BY position").fetchall()
    assert rows == [("h", "1"), ("h", "2")]


@pytest.mark.parametrize("value", [datetime.now(UTC), About(), object(), {1: 2}, 2**70, b"x"])
def test_what_json_would_not_give_back_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        JSONBody().encode({"value": value})


def test_several_aggregates_come_from_one_query_in_the_order_asked_for(ledger: Ledger) -> None:
    things = [Thing(uuid4()) for _ in range(3)]
    for number, thing in enumerate(things):
        thing.record(Renamed, c=number)
    ledger.save(*things)
    unknown = uuid4()
    wanted = [things[2].id, unknown, things[0].id]
    loaded = ledger.load_many(*((Thing, id_) for id_ in wanted))
    assert [(thing.id, thing.seen) for thing in loaded] == list(
        zip(wanted, [[2], [], [0]], strict=True)
    )


def test_event_log_shows_bodies_that_jsonb_would_refuse(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    ledger.recorder.insert_events([IndexedEvent(uuid4(), 1, "T", b'{"a": "\\u0000"}')])
    assert db.execute("SELECT body::text FROM event_log").fetchone() == ('{"a": "\\u0000"}',)
