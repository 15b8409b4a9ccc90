"""History for people: events as lines of a timeline, grouped by operation.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.cli.words import BOOKKEEPING, sentence

COLUMNS = ("Position", "Time", "Who", "What", "Operation", "Host", "Request", "Event")
WHO_MAX = 24


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One event, as the API tells it."""

    position: int
    at: datetime
    topic: str
    who: str
    what: str
    operation_id: str | None
    host: str | None
    request_id: str | None

    @classmethod
    def of(cls, event: dict[str, Any]) -> Entry:
        return cls(
            position=event["position"],
            at=datetime.fromisoformat(event["recorded_at"]).astimezone(UTC),
            topic=event["topic"],
            who=event["actor"] or "-",
            what=sentence(event["topic"], event["body"], host=event["host"]),
            operation_id=event["operation_id"],
            host=event["host"],
            request_id=event["request_id"],
        )

    @property
    def row(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        time = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return (
            self.position,
            time,
            self.who,
            self.what,
            self.operation_id,
            self.host,
            self.request_id,
            self.topic,
        )


def lines(entries: Iterable[Entry], *, long: bool = False) -> Iterator[str]:
    """A heading whenever the operation changes, then a line per event.

    Without `long`, bookkeeping is left out, and the last line says so.
    """
    entries = list(entries)
    shown = [entry for entry in entries if long or entry.topic not in BOOKKEEPING]
    who = min(WHO_MAX, max((len(entry.who) for entry in shown), default=0))
    host = max((len(entry.host or "") for entry in shown), default=0)
    above: tuple[Any, ...] | None = None
    for entry in shown:
        heading = (entry.operation_id, entry.at.date())
        if heading != above:
            yield from ([""] if above else [])
            yield _heading(entry)
            above = heading
        time = entry.at.isoformat(timespec="milliseconds")[11:23]
        line = f"  {time}  {entry.who[:who]:<{who}}  {entry.host or '':<{host}}  {entry.what}"
        yield line.rstrip()
    hidden = len(entries) - len(shown)
    if hidden:
        yield f"({hidden} events of bookkeeping are not shown: --long)"


def _heading(entry: Entry) -> str:
    day = f"{entry.at:%Y-%m-%d} UTC"
    if entry.operation_id is None:
        return f"{day}  outside of operations"
    return f"{day}  operation {entry.operation_id}  request {entry.request_id or '-'}"
