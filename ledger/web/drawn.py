"""Time lines: attachments, or the spans in which hosts held their volumes, as bars, operations as
marks; and small plots of numbers.  Pure.

It is drawn here, as SVG without style or script, so that it prints and needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ledger.upkeep.long_work import duration

#: Across it is in per cent of what there is, so that words are as large on each screen; down in
#: pixels.
WIDTH, ROW, TOP = 100, 28, 24
#: What is shorter is as wide as this, so that it can be seen and pointed at.
BAR_MIN = 0.3
TICKS = 6
#: What is narrower shows nothing that the next wider one does not.
SPAN_MIN = timedelta(seconds=1)
#: Of a small plot: its size, and how much of a number's place its bar takes.
PLOT_WIDTH, PLOT_HEIGHT, PLOT_BAR = 240, 48, 0.75

#: How a tick is told on a line that is shorter than this.
_FORMS = (
    (timedelta(days=1), "%H:%M:%S"),
    (timedelta(days=TICKS), "%m-%d %H:%M"),
    (timedelta.max, "%Y-%m-%d"),
)

_SECONDS = "%Y-%m-%d %H:%M:%S UTC"

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An attachment, from when it was made (or a host held it) to its end, or to now."""

    x: float
    y: float
    width: float
    attachment_id: str
    label: str
    state: str
    title: str


@dataclass(frozen=True, kw_only=True)
class OperationMark:
    """An operation, where it began, or at the edge if that was before."""

    x: float
    operation_id: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    x: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Zoom:
    """A link to another part of the line; without ends, to the whole."""

    title: str
    begin: str | None = None
    end: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """`at`: where the moment is that is asked about, if it is here.  `title`: from when to when."""

    height: float
    bars: Sequence[Bar]
    marks: Sequence[OperationMark]
    ticks: Sequence[Tick]
    at: float | None
    title: str
    zooms: Sequence[Zoom]
    row: int = ROW


def part(
    span: Sequence[datetime | None],
    length: timedelta | None,
    at: datetime | None,
    now: datetime,
) -> tuple[datetime | None, datetime | None]:
    """What is shown where `span` is asked for; if nothing is, so much of it, around the moment that
    is asked about, else up to now.  No end lies in the future.
    """
    begin, end = span
    if length and not any(span):
        begin, end = (at - length / 2, at + length / 2) if at else (now - length, None)
    return begin, end if end and end < now else None


def timeline(
    attachments: Sequence[Mapping[str, Any]],
    operations: Iterable[Mapping[str, Any]],
    now: datetime,
    at: datetime | None = None,
    span: Sequence[datetime | None] = (None, None),
    *,
    first: str | None = None,
    page: str = "volume",
) -> Timeline | None:
    """None if there was no attachment.  `span`: the part that is shown; None: from the first on,
    and up to now.  `first`: when there was something first, if these are not all.  `page`: what
    they all are of, volume, server or host: they are named by the others.
    """
    if not attachments and first is None:
        return None
    whole = (_moment(first) if first else min(map(_begin, attachments)), now)
    begin, end = _shown(span, whole)
    length = end - begin

    def x(moment: datetime) -> float:
        return round(WIDTH * ((min(max(moment, begin), end) - begin) / length), 2)

    marks = [
        OperationMark(
            x=x(began),
            operation_id=each["operation_id"],
            title=f"{each['flow']}: {each['outcome'] or each['state']}, {began:{_SECONDS}}",
        )
        for each in operations
        if (began := _moment(each["started_at"])) <= end and not _over(each, begin)
    ]
    bars = [*_bars(attachments, (begin, end), now, x, page)]
    form = next(form for most, form in _FORMS if length < most)
    moments = [begin + length * part / TICKS for part in range(TICKS)]
    return Timeline(
        height=TOP + len(bars) * ROW + ROW,
        bars=bars,
        marks=marks,
        ticks=[Tick(x=x(each), title=each.strftime(form)) for each in moments],
        at=x(at) if at is not None and begin <= at <= end else None,
        title=f"{begin:%Y-%m-%d %H:%M:%S} to {end:{_SECONDS}}",
        zooms=[*_zooms((begin, end), whole, at, first)],
    )


def _shown(span: Sequence[datetime | None], whole: Span) -> Span:
    """The part of the whole that is asked for, where there is one; at least SPAN_MIN long."""
    begin, end = (given or own for given, own in zip(span, whole, strict=True))
    begin = max(begin, whole[0])
    end = min(end, whole[1])
    return (begin, max(end, begin + SPAN_MIN)) if begin <= end else _shown((None, None), whole)


def _bars(
    attachments: Sequence[Mapping[str, Any]],
    shown: Span,
    now: datetime,
    x: Callable[[datetime], float],
    page: str,
) -> Iterator[Bar]:
    """Those that were there at some time of what is shown, a row for each."""
    row = 0
    for each in attachments:
        begin, ended = _begin(each), each["ended_at" if "created_at" in each else "to_at"]
        end = _moment(ended) if ended else now
        if begin > shown[1] or end < shown[0]:
            continue
        label = _label(each, page)
        state = "ended" if ended else each.get("state", "attached")
        yield Bar(
            x=x(begin),
            y=TOP + row * ROW,
            width=max(BAR_MIN, x(end) - x(begin)),
            attachment_id=each["attachment_id"],
            label=label,
            state=state,
            title=f"{label}: {state}, {begin:%Y-%m-%d %H:%M:%S} to {end:{_SECONDS}}",
        )
        row += 1


def _label(of: Mapping[str, Any], page: str) -> str:
    """Who has which volume where, but for what the page is about, and what nobody may see."""
    named = {
        "volume": f"volume {of['volume_id'][:8]}",
        "server": of.get("server_name") or f"server {of['server_id'][:8]}",
        "host": of["host"],
    }
    return ", ".join(name for kind, name in named.items() if name and kind != page)


def _over(operation: Mapping[str, Any], at: datetime) -> bool:
    """Whether it had ended before."""
    ended = operation["finished_at"]
    return ended is not None and _moment(ended) < at


def _begin(of: Mapping[str, Any]) -> datetime:
    """Of an attachment when it was made, of a span when it began."""
    return _moment(of.get("created_at") or of["from_at"])


def _zooms(shown: Span, whole: Span, at: datetime | None, whole_from: str | None) -> Iterator[Zoom]:
    """Narrower around the moment that is asked about, else the middle; wider, earlier, later."""
    (begin, end), (first, last) = shown, whole
    length = end - begin
    middle = at if at is not None and begin <= at <= end else begin + length / 2
    if length > SPAN_MIN:
        yield _zoom("narrower", middle - length / 4, middle + length / 4)
    if begin > first or end < last:
        yield _zoom("wider", begin - length / 2, end + length / 2)
    if begin > first:
        yield _zoom("earlier", begin - length / 2, end - length / 2)
    if end < last:
        yield _zoom("later", begin + length / 2, end + length / 2)
    if begin > first or end < last:
        yield Zoom(title="all of it", begin=whole_from)  # without a beginning: what the page likes


def _zoom(title: str, begin: datetime, end: datetime) -> Zoom:
    return Zoom(title=title, begin=begin.isoformat(), end=end.isoformat())


@dataclass(frozen=True, kw_only=True)
class PlotBar:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Numbers as bars, as high as the largest allows; `title` for who does not see them."""

    bars: Sequence[PlotBar]
    title: str
    width: int = PLOT_WIDTH
    height: int = PLOT_HEIGHT


def plot(numbers: Sequence[int], each_minutes: int, *, ages: bool = False) -> Plot:
    """Of each so many minutes a number, or with `ages` the seconds that something became old, the
    oldest first.
    """
    most, place = max(numbers, default=0), PLOT_WIDTH / max(len(numbers), 1)
    heights = [PLOT_HEIGHT * number / max(most, 1) for number in numbers]
    bars = [
        PlotBar(
            x=round(place * nth, 1),
            y=round(PLOT_HEIGHT - height, 1),
            width=round(place * PLOT_BAR, 1),
            height=round(height, 1),
        )
        for nth, height in enumerate(heights)
        if height
    ]
    each = "one" if each_minutes == 1 else f"{each_minutes}"
    minutes = len(numbers) * each_minutes
    title = f"{sum(numbers)} in {minutes} minutes, at most {most} in {each}"
    if ages:
        title = f"the oldest was at most {duration(most)} old in {minutes} minutes"
    return Plot(bars=bars, title=title)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
