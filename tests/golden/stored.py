"""The files of one version in tests/golden: what it stored and sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from aggregates.base import About, Actor, EventContext
from ledger.log.mapper import IndexedEvent

HERE = Path(__file__).parent
_READABLE = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True)
class Golden:
    """`events.jsonl`, and documents by name."""

    path: Path

    def read(self, name: str) -> Any:
        return json.loads((self.path / f"{name}.json").read_text())

    def write(self, name: str, document: Any) -> None:
        (self.path / f"{name}.json").write_bytes(orjson.dumps(document, option=_READABLE))

    def events(self) -> Iterator[tuple[IndexedEvent, EventContext]]:
        for line in (self.path / "events.jsonl").read_text().splitlines():
            yield _event_of(json.loads(line))

    def write_events(self, lines: list[dict[str, Any]]) -> None:
        text = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
        (self.path / "events.jsonl").write_bytes(text)


def line_of(event: IndexedEvent, context: EventContext) -> dict[str, Any]:
    return {
        "id": str(event.originator_id),
        "version": event.originator_version,
        "topic": event.topic,
        "body": json.loads(event.state),
        "about": asdict(event.about),
        "context": {**asdict(context), "actor": context.actor.stored()},
    }


def _event_of(line: dict[str, Any]) -> tuple[IndexedEvent, EventContext]:
    context = EventContext(**{**line["context"], "actor": Actor.of(line["context"]["actor"])})
    event = IndexedEvent(
        UUID(line["id"]),
        line["version"],
        line["topic"],
        orjson.dumps(line["body"]),
        about=About(**line["about"]),
    )
    return event, context
