"""What a look has seen, from the page where it was seen to the findings that come of it.

It is kept in a table until the look is over: only then is it known whether a class has so many
new cases that they are not to be believed (judge.suppressed), memory does not grow with them, and
another process can go on with the look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import orjson

from aggregates.base import About, EventContext
from aggregates.finding import Finding, FindingState
from handlers.drift import judge
from handlers.drift.classes import BY_NAME, DriftClass
from handlers.drift.judge import Life, Sight, Suspicion
from handlers.drift.rows import Key, Row, Subject
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.reconcile.reads import LedgerReads

T = TypeVar("T")

#: Findings that are stored at once.
BATCH = 50
#: How many findings of a class that is not believed are named.
EXAMPLES = 3
_NOBODY: Mapping[str, Life] = {}


@dataclass(frozen=True, kw_only=True)
class JudgedCase:
    """A case, as of which position it was judged, and of which lives of its hosts (judge.Sight)."""

    case: Suspicion
    position: int
    lives: Mapping[str, Life] = field(default_factory=dict)

    @property
    def age_s(self) -> float:
        """Of the oldest survey that has told of it."""
        return max((life["age_s"] for life in self.lives.values()), default=0.0)

    @property
    def finding_id(self) -> str:
        return judge.finding_id(self.case.drift_class, self.case.key)

    @classmethod
    def of(
        cls, drift_class: DriftClass, row: Row, position: int, lives: Mapping[str, Life] = _NOBODY
    ) -> JudgedCase:
        case = Suspicion.of(drift_class, row)
        return cls(case=case, position=position, lives={host: lives[host] for host in case.hosts})

    def to_json(self) -> dict[str, Any]:
        key, case = self.case.key, self.case
        return {
            "key": [key.subject.value, key.id, key.host],
            "about": vars(case.about),
            "differs": dict(case.differs),
            "when": [self.position, dict(self.lives)],
        }

    @classmethod
    def from_json(cls, drift_class: str, data: Mapping[str, Any]) -> JudgedCase:
        subject, id_, host = data["key"]
        position, lives = data["when"]
        case = Suspicion(
            drift_class=BY_NAME[drift_class],
            key=Key(subject=Subject(subject), id=id_, host=host),
            about=About(**data["about"]),
            differs=data["differs"],
            hosts=frozenset(lives),
        )
        return cls(case=case, position=position, lives=lives)


class Suspicions:
    """Of one look."""

    def __init__(
        self,
        reads: LedgerReads,
        store: AggregateStore,
        look_id: str,
        context: EventContext,
        confirmed: Callable[[str], object],
    ) -> None:
        self._confirmed = confirmed
        self._reads = reads
        self._store = store
        self._look_id = look_id
        self._context = context

    def put(self, seen: Sequence[JudgedCase]) -> Counter[str]:
        """Keep these; how many of each class are new to the look."""
        rows = [
            {
                "finding_id": each.finding_id,
                "drift_class": each.case.drift_class.name,
                "seen": each.to_json(),
            }
            for each in seen
        ]
        if not rows:
            return Counter()
        cases = orjson.dumps(rows).decode()
        put = self._reads.rows("put_cases", look_id=self._look_id, cases=cases)
        return Counter(row["drift_class"] for row in put)

    def drop(self) -> None:
        self._reads.rows("drop_cases", look_id=self._look_id)

    def opening(self) -> dict[str, int]:
        """How many findings of each class these would open."""
        rows = self._reads.rows("opening", look_id=self._look_id)
        return {row["drift_class"]: row["number"] for row in rows}

    def examples(self, classes: Iterable[str]) -> dict[str, list[str]]:
        """Of each of these classes, of what a few of the findings are that these would open."""
        found: dict[str, list[str]] = {}
        asked = {"look_id": self._look_id, "classes": list(classes), "most": EXAMPLES}
        for row in self._reads.rows("examples", **asked):
            seen = JudgedCase.from_json(row["drift_class"], row["seen"])
            found.setdefault(row["drift_class"], []).append(_place(seen.case))
        return found

    def believe(
        self, suppressed: Mapping[str, int], heard: frozenset[str], after: str | None
    ) -> Iterator[tuple[str, Counter[str], int]]:
        """Make findings of them, batch by batch: up to which id; how many of each class were opened
        by it; how many are explained by what has happened since they were seen.

        `heard`: the hosts that the look has asked, and that have answered.
        """
        for page in self._reads.paged("cases", "finding_id", after, look_id=self._look_id):
            for batch in batched(page, BATCH):
                seen = [
                    (JudgedCase.from_json(row["drift_class"], row["seen"]), row["apart_s"])
                    for row in batch
                    if not (row["opens"] and row["drift_class"] in suppressed)
                ]
                yield batch[-1]["finding_id"], *self._believe(seen, heard)

    def _believe(
        self, batch: Sequence[tuple[JudgedCase, float | None]], heard: frozenset[str]
    ) -> tuple[Counter[str], int]:
        moves = self._reads.moves([seen.case.about for seen, _ in batch])
        sights = [
            (
                seen,
                Sight(
                    look_id=self._look_id,
                    position=seen.position,
                    apart=apart_s is not None
                    and apart_s - seen.age_s >= judge.apart_s(seen.case.drift_class),
                    moved_at=move.moved_at,
                    heard=heard,
                    lives=seen.lives,
                ),
            )
            for (seen, apart_s), move in zip(batch, moves, strict=True)
            if not move.explains(seen.position)
        ]

        def change(unit: Unit) -> tuple[Counter[str], list[str]]:
            opened, confirmed = Counter[str](), list[str]()
            for seen, sight in sights:
                finding = unit.get(Finding, seen.finding_id)
                before = finding.state
                judge.see_case(finding, seen.case, sight)
                opened[seen.case.drift_class.name] += before in {None, FindingState.OVER}
                if finding.state is FindingState.CONFIRMED is not before:
                    confirmed.append(seen.finding_id)
            unit.save(self._context)
            return opened, confirmed

        opened, confirmed = run_optimistically(self._store, change)
        for finding_id in confirmed:
            self._confirmed(finding_id)
        return opened, len(batch) - len(sights)

    def miss(self, findings: Sequence[str], sight: Sight) -> None:
        """Nobody has these differences any more."""
        self._change(findings, lambda finding: judge.miss(finding, sight))

    def unignore(self, findings: Sequence[str], now_s: float) -> None:
        """Those of these that are ignored no longer, by the database's clock."""
        self._change(findings, lambda finding: _unignore(finding, now_s))

    def _change(self, findings: Sequence[str], change: Callable[[Finding], None]) -> None:
        for batch in batched(findings, BATCH):
            run_optimistically(self._store, partial(self._change_all, batch, change))

    def _change_all(
        self, findings: Sequence[str], change: Callable[[Finding], None], unit: Unit
    ) -> None:
        for id_ in findings:
            change(unit.get(Finding, id_))
        unit.save(self._context)


def _place(case: Suspicion) -> str:
    """Where it is, and of what, as far as the class is about a host."""
    host = case.key.host or case.about.host
    return f"{case.key.id} on {host}" if host else case.key.id


def _unignore(finding: Finding, now_s: float) -> None:
    until = finding.ignored_until
    if finding.state is FindingState.IGNORED and until is not None and until <= now_s:
        finding.record(Finding.DriftHeeded, reason="its time is over")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """In lists of at most this size."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
