"""Ids and times as they stand in docs/tour.md: the same every time, and as long as real ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_URL, uuid5

from tests.tour.night import DB, RESERVED, STUCK, WEB, Night

#: So much later the operator comes.
LATER = timedelta(minutes=17)
_DAY, _PLANTED, _MENDED = "2026-11-17", "02:14:05", "02:31:40"
_FIXED = frozenset({WEB.id, DB.id, RESERVED.id, STUCK.id})

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT = re.compile(r"(?<![\w-])[0-9a-f]{8}(?![\w-])")
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d(?P<gap>[ T])(?P<time>\d\d:\d\d:\d\d)(?P<end>Z| UTC)(?P<ago>, \d+ \w+ ago)?"
)
_TIME = re.compile(r"(?<![\d:-])\d\d:\d\d:\d\d\.\d{3}")
_POSITION = re.compile(r"^((?:began_)?position +)\d+$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d UTC")


class Stable:
    """`seen`: all that is to be made stable, for ids that only it has."""

    def __init__(self, night: Night, seen: str) -> None:
        self._planted_at = night.planted_at
        counts: dict[str, int] = {}
        self._ids: dict[str, str] = {each: each for each in _FIXED}
        for event in night.cloud.ledger.items("/v1/events", "events", 10_000):
            kind = event["topic"].partition(".")[0]
            self._add(event["originator_id"], kind, counts)
        for each in _ID.findall(seen):
            self._add(each, "other", counts)
        self._short = {whole[:8]: to[:8] for whole, to in self._ids.items()}

    def _add(self, id_: str, kind: str, counts: dict[str, int]) -> None:
        if id_ not in self._ids:
            counts[kind] = counts.get(kind, 0) + 1
            self._ids[id_] = str(uuid5(NAMESPACE_URL, f"{kind} {counts[kind]}"))

    def text(self, text: str) -> str:
        text = _ID.sub(lambda found: self._ids.get(found[0], found[0]), text)
        text = _SHORT.sub(lambda found: self._short.get(found[0], found[0]), text)
        text = _MOMENT.sub(self._moment, text)
        text = _DATE.sub(f"{_DAY} UTC", text)
        text = _TIME.sub(lambda found: f"{self.time(self._today(found[0]))}.000", text)
        text = re.sub(r"\b\d+ min ago", f"{LATER.seconds // 60} min ago", text)
        text = _POSITION.sub(r"\g<1>60", text)
        # What the guest shows goes with the report of its run, or by itself if that is quicker.
        text = re.sub(r"\b\d+ events of bookkeeping", "13 events of bookkeeping", text)
        return re.sub(r"\b\d+ ms\b", "8 ms", text)

    def time(self, at: datetime) -> str:
        """The incident is one moment, and what was done about it another."""
        return _PLANTED if at <= self._planted_at else _MENDED

    def ago(self, at: datetime) -> str:
        return f"{LATER.seconds // 60} min ago" if at <= self._planted_at else "1 s ago"

    def age(self, text: str, moment: str) -> str:
        """What stands for a moment on a page: itself, or how long ago it was."""
        if _MOMENT.search(text):
            return self.text(text)
        return self.ago(datetime.fromisoformat(moment).astimezone(UTC))

    def _moment(self, found: re.Match[str]) -> str:
        at = self._today(f"{found['time']}.000")
        ago = f", {self.ago(at)}" if found["ago"] else ""
        return f"{_DAY}{found['gap']}{self.time(at)}{found['end']}{ago}"

    def _today(self, time: str) -> datetime:
        """Of the days about, the one on which it was within half a day of the incident."""
        planted = self._planted_at
        at = datetime.fromisoformat(f"{planted.date()}T{time}+00:00")
        days = round((planted - at) / timedelta(days=1))
        return at + timedelta(days=days)
