"""History for people: events as lines of a timeline, grouped by operation.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.words.sentences import is_bookkeeping, sentence

COLUMNS = (
    *("Position", "Time", "Who", "What", "Operation", "Host", "Request", "Event"),
    *("Occurred", "Asked by"),
)
WHO_MAX = 24
#: An agent tells what happened within a second or two; what took longer is worth a word.
LATE_S = 3.0


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
    occurred_at: datetime | None = None  # on its host, by the ledger's clock
    bookkeeping: bool = False  # shown only if somebody asks
    asked_by: str | None = None  # who asked for the operation, and through which request

    @classmethod
    def of(cls, event: dict[str, Any], as_of: str | None = None) -> Entry:
        """`as_of`: the moment that is asked about: what was seen had perhaps not been so yet."""
        at = _moment(event["recorded_at"])
        occurred_at = _moment(event["occurred_at"]) if event.get("occurred_at") else None
        what = sentence(event["topic"], event["body"], host=event["host"])
        seen = event["body"].get("seen")
        if as_of and seen and _moment(seen["before"]) > _moment(as_of):
            what = f"Perhaps: {what}"
        return cls(
            position=event["position"],
            at=at,
            occurred_at=occurred_at,
            asked_by=_asker(event.get("asked_by")),
            topic=event["topic"],
            bookkeeping=is_bookkeeping(event["topic"], event["body"], event["operation_id"]),
            who=event["actor"] or "-",
            what=what + _lateness(at, occurred_at),
            operation_id=event["operation_id"],
            host=event["host"],
            request_id=event["request_id"],
        )

    @property
    def row(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        return (
            self.position,
            _text(self.at),
            self.who,
            self.what,
            self.operation_id,
            self.host,
            self.request_id,
            self.topic,
            _text(self.occurred_at) if self.occurred_at else None,
            self.asked_by,
        )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _asker(asked_by: Mapping[str, Any] | None) -> str | None:
    if asked_by is None:
        return None
    through = asked_by.get("global_request_id")
    return f"{asked_by['name']} through {through}" if through else asked_by["name"]


def _lateness(at: datetime, occurred_at: datetime | None) -> str:
    late_s = (at - occurred_at).total_seconds() if occurred_at else 0.0
    if occurred_at is None or late_s < LATE_S:
        return ""
    return f"; it was at {occurred_at:%H:%M:%S}, and told {late_s:.0f} s late"


def lines(entries: Iterable[Entry], *, long: bool = False) -> Iterator[str]:
    """A heading whenever the operation changes, then a line per event.

    Without `long`, bookkeeping is left out, and the last line says so.
    """
    entries = list(entries)
    shown = [entry for entry in entries if long or not entry.bookkeeping]
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
    asked = f"  asked by {entry.asked_by}" if entry.asked_by else ""
    return f"{day}  operation {entry.operation_id}  request {entry.request_id or '-'}{asked}"
