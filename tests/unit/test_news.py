"""What a step of the projections tells those who wait: which keys it has moved."""

from __future__ import annotations

from typing import Any

import orjson

from projections.base import Row
from projections.running import news
from projections.running.writes import Replacement, TablePlace


def test_a_step_tells_those_who_wait_what_it_has_moved() -> None:
    def moved(table: Any, *rows: Row) -> list[Any]:
        place = TablePlace("x", table, "key", "text", ())
        told = news.News.read(news.text_of(["x"], 5, 9, [Replacement(place, [], list(rows))]))
        assert (told.projections, told.after, told.to) == (["x"], 5, 9)
        return told.moved

    for table in ("mailbox", "hosts"):
        rows = {"position": 5, "host": "before"}, {"position": 6, "host": "h"}
        assert moved(table, *rows) == [["host", "h", None, False, False, False]]
    running: Row = {"operation_id": "o", "state": "running", "due_at": None, "bound": False}
    changes: list[tuple[Row, tuple[bool, bool, bool]]] = [
        ({}, (False, False, False)),
        ({"bound": True}, (True, False, False)),
        ({"due_at": 1}, (False, False, True)),
        ({"state": "finished"}, (True, True, False)),
    ]
    for change, (bound, ended, due) in changes:
        about = [["operation", "o", None, bound, ended, due]]
        assert moved("operations", {**running, **change}) == about
    assert moved("volumes", running) == []


def test_news_that_no_notification_can_carry_are_left_out() -> None:
    place = TablePlace("x", "hosts", "host", "text", ())

    def text(length: int) -> str:
        rows = [{"position": 6, "host": "h" * length}]
        return news.text_of(["x"], 5, 9, [Replacement(place, [], rows)])

    frame = len(orjson.dumps((["x"], 5, 9, [("host", "", None, False, False, False)])))
    most = news.TEXT_BYTES_MAX - frame
    assert len(text(most)) == news.TEXT_BYTES_MAX
    assert text(most + 1) == ""
