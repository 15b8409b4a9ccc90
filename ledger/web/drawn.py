"""The time line of a volume or a server: its attachments as bars, operations as marks.  Pure.

It is drawn here, as SVG without style or script, so that it prints and needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

WIDTH, ROW, TOP = 960, 28, 24
#: What is shorter is as wide as this, so that it can be seen and pointed at.
BAR_MIN = 3
TICKS = 6


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An attachment, from when it was made to its end, or to now."""

    x: float
    y: float
    width: float
    attachment_id: str
    label: str
    state: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An operation, where it began."""

    x: float
    operation_id: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    x: float
    said: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """`at`: where the moment is that is asked about, if it is here."""

    height: float
    bars: Sequence[Bar]
    marks: Sequence[Mark]
    ticks: Sequence[Tick]
    at: float | None
    width: int = WIDTH
    row: int = ROW


def timeline(
    attachments: Sequence[Mapping[str, Any]],
    operations: Iterable[Mapping[str, Any]],
    now: datetime,
    at: datetime | None = None,
) -> Timeline | None:
    """None if there was no attachment."""
    if not attachments:
        return None
    begins = [_moment(each["created_at"]) for each in attachments]
    first = min(begins)
    whole = max(now - first, timedelta(seconds=1))

    def x(moment: datetime) -> float:
        return round(WIDTH * ((moment - first) / whole), 1)

    bars = []
    for row, (each, begin) in enumerate(zip(attachments, begins, strict=True)):
        end = _moment(each["ended_at"]) if each["ended_at"] else now
        host = each["host"] or "no host"
        state = "ended" if each["ended_at"] else each["state"]
        bars.append(
            Bar(
                x=x(begin),
                y=TOP + row * ROW,
                width=max(BAR_MIN, x(end) - x(begin)),
                attachment_id=each["attachment_id"],
                label=host,
                state=state,
                said=f"{host}: {state}, {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC",
            )
        )
    marks = [
        Mark(
            x=x(began),
            operation_id=each["operation_id"],
            said=f"{each['flow']}: {each['outcome'] or each['state']}, {began:%H:%M:%S}",
        )
        for each in operations
        if first <= (began := _moment(each["started_at"])) <= now
    ]
    form = "%H:%M:%S" if whole < timedelta(days=1) else "%Y-%m-%d"
    moments = [first + whole * part / TICKS for part in range(TICKS)]
    return Timeline(
        height=TOP + len(bars) * ROW + ROW,
        bars=bars,
        marks=marks,
        ticks=[Tick(x=x(each), said=each.strftime(form)) for each in moments],
        at=x(at) if at is not None and first <= at <= now else None,
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
