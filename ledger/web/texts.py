"""How the console says things: times, ids, states.  Pure; the filters of its templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from handlers.drift.classes import Severity
from handlers.engine.verbs import VERBS
from ledger.http.problem import ApiError
from ledger.upkeep.long_work import duration
from ledger.words.timeline import Entry

#: Of an id, so much is shown where the whole one is the link's.
SHORT_CHARS = 8

_CODE = re.compile(r"`([^`]+)`")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: How a state looks; the word beside it says the same.
LOOKS = {
    "bad": {"parked", "failed", "ERROR", "error", "critical", "fenced", "down", "failing"}
    | {"refused"},
    "open": {"running", "warning", "confirmed", "suspected", "suspect", "unvouched", "under_way"}
    | {"reserved", "connecting", "stays", "in part", "perhaps"},
    "good": {"completed", "attached", "ok", "ACTIVE", "done", "up"}
    | {"adoptable", "adopted", "returnable", "ready"},
}


def moment(text: str | None) -> str:
    """As 2026-11-22 12:03:04 UTC; nothing for no moment."""
    return f"{_parsed(text):%Y-%m-%d %H:%M:%S} UTC" if text else ""


def ago(text: str | None, now: datetime) -> str:
    """As "3 min 20 s ago", by the database's clock."""
    if not text:
        return ""
    seconds = (now - _parsed(text)).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def since(age_s: int, at: str) -> str:
    """When what was so old at a moment began."""
    return (_parsed(at) - timedelta(seconds=age_s)).isoformat()


def short(id_: str | None) -> str:
    return (id_ or "")[:SHORT_CHARS]


def with_ids(text: str) -> Markup:
    """A sentence whose ids are not broken, and look like ids; what is typed looks like that."""
    marked = _ID.sub(r'<span class="id">\g<0></span>', str(escape(text)))
    return Markup(_CODE.sub(r"<code>\1</code>", marked))  # noqa: S704 - escaped


def words(name: str | None) -> str:
    """A name of code's, for people."""
    return (name or "").replace("_", " ")


def does(verb: str) -> str:
    """What a step does, as an order."""
    return VERBS[verb].words if verb in VERBS else words(verb)


def look(state: str | None) -> str:
    """The class that shows a state: good, open, bad, or plain."""
    return next((look for look, states in LOOKS.items() if state in states), "plain")


def story(
    events: Iterable[Mapping[str, Any]], at: datetime | None = None
) -> list[tuple[str | None, date, list[Entry]]]:
    """Events as they came, newest first, in the operations they are part of, and each day by
    itself; no bookkeeping.
    """
    all_ = (Entry.of(dict(event), at.isoformat() if at else None) for event in events)
    entries = [entry for entry in all_ if not entry.bookkeeping]
    grouped = groupby(entries, key=lambda entry: (entry.operation_id, entry.at.date()))
    return [(operation_id, day, list(group)) for (operation_id, day), group in grouped]


def by_volume(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Attachments by their volume, in the order of the first of each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        found.setdefault(each["volume_id"], []).append(each)
    return found


def worst_first(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Findings by severity, the critical ones first; those of one severity as they came."""
    return sorted(rows, key=lambda each: [*Severity].index(each["severity"]))


def begun(rows: Iterable[Mapping[str, Any]], at: datetime | None) -> list[Mapping[str, Any]]:
    """Attachments that had been made at a moment; all, as of now."""
    return [each for each in rows if at is None or _parsed(each["created_at"]) <= at]


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def as_moment(text: str | None) -> datetime | None:
    """The moment a page is asked to be as of, as the API takes it.  ApiError 400."""
    if not text:
        return None
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if MINYEAR < at.year < MAXYEAR:  # a page counts from it, and in UTC
            return at if at.tzinfo else at.replace(tzinfo=UTC)
    raise ApiError(
        400, "invalid", "This is no moment of the years 2 to 9998: 2026-01-31T12:00:00Z is one."
    )
