"""How far a look is: what it counts, and what another process needs to go on with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

from handlers.drift import judge
from handlers.drift.classes import DriftClass
from handlers.drift.rows import SUBJECTS, Row

#: How many volumes a look names that Cinder has not told all of.
NAMED_MAX = 100


@dataclass(kw_only=True)
class LookProgress:
    """`position`: as of which the look is judged.  `after`: ids of the phase that are done last.

    `context`: of who asked for it (look.context_of); `why`, `believe`, `reason`: as
    aggregates.look.Look has them.
    `total`: about how many things there are to compare; `done`: those that are.  `open_`: findings
    by class that were open when it began.  `cases`: what it has seen, by class, and
    `passed`: what it has not even asked about, because there is too much of the class.
    `unknown`: hosts, and volumes that Cinder has not told all of, and why; `not_told`: how often
    it has not.  `unlisted`: attachments that Cinder has and its list has not.  `heard`: the hosts
    that were asked, and have told of their guests.
    """

    look_id: str
    position: int
    scope: dict[str, str]
    context: dict[str, Any]
    why: str = ""
    believe: list[str] = field(default_factory=list)
    reason: str | None = None
    phase: str = "begin"
    after: list[str] = field(default_factory=list)
    total: int = 0
    done: int = 0
    open_: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    not_told: int = 0
    in_flight: int = 0
    unlisted: int = 0
    heard: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As it is now.  A look makes one after each step, most of which nobody keeps."""
        return {name: copy(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    @property
    def last(self) -> str | None:
        return self.after[-1] if self.after else None

    def compare(self, rows: Iterable[Row]) -> None:
        counted = Counter(map(type, rows))
        _add(self.compared, {SUBJECTS[kind].value: number for kind, number in counted.items()})

    def count(self, cases: Mapping[str, int]) -> None:
        _add(self.cases, cases)

    def open(self, opened: Mapping[str, int]) -> None:
        _add(self.opened, opened)

    def not_judged(self, volume_id: str, why: str) -> None:
        """Cinder has not told all of a volume."""
        self.not_told += 1
        if self.not_told <= NAMED_MAX:
            self.unknown[f"volume {volume_id}"] = why
        else:
            self.unknown["more volumes"] = f"{self.not_told - NAMED_MAX} times, for such reasons"

    def hopeless(self, drift_class: DriftClass) -> bool:
        """Whether it has so many cases of the class that new ones will not be believed."""
        if drift_class.name in self.believe:
            return False
        most = judge.limit(self.total) + self.open_.get(drift_class.name, 0)
        return self.cases.get(drift_class.name, 0) > most

    def pass_over(self, drift_class: DriftClass) -> None:
        _add(self.passed, {drift_class.name: 1})

    def suppressed(self, opening: Mapping[str, int]) -> dict[str, int]:
        """The classes that are not believed, of what would be opened."""
        every = Counter(opening)
        every.update(self.passed)
        return judge.suppressed(every, self.compared, self.believe)


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for name, number in more.items():
        if number:
            to[name] = to.get(name, 0) + number
