"""Whether one order of the calls on a volume explains all that their callers were told.

A history is what clients did to one volume, and what they were answered: each call between two
moments of one clock.  The order may put a call anywhere between its two moments, and nowhere else
(Herlihy and Wing, Linearizability, 1990); the search is that of Wing and Gong, with a memory of
where it has been (Lowe, Testing for linearizability, 2017).

What a volume is here: the servers that have it.  `attach` and `detach` are asked for, and over when
their operation is: one that fails after it was accepted may have been seen in between.  Of one
without an answer nobody knows whether it happened, or when.  Reads say who has it at one
point; a read as of a moment (`at`) does so at that moment, whenever it was asked, and so the same
whenever it is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

#: More than this has no answer within a test's time: ask for less, or for fewer at once.
STATES_MAX = 500_000
NEVER = math.inf
SHOWN = 12

COMPLETED, FAILED, REFUSED, UNKNOWN = "completed", "failed", "refused", "unknown"

Has = frozenset[str]
#: A step of a call: the server that gets the volume, or loses it.
Step = tuple[str, str]


@dataclass(frozen=True)
class Called:
    """A call and its answer.

    `told`: of attach and detach, how it went; of list and show, whether `server` has the volume; of
    an as-of read (and any read of the whole), the servers that have it.
    """

    client: str
    call: str
    invoked_at: float
    returned_at: float
    told: Any
    server: str = ""
    at: float | None = None

    @property
    def changes(self) -> bool:
        return self.call in {"attach", "detach"}

    def ways(self) -> tuple[tuple[Step, ...], ...]:
        """Each way in which it may have happened; without an answer it need not come to its end."""
        if not self.changes or self.told == REFUSED:
            return ((),)
        done = (self.call, self.server)
        back: Step = ("detach", self.server)
        undone = (done, back) if self.call == "attach" else ()
        return {
            COMPLETED: ((done,),),
            FAILED: ((), undone) if undone else ((),),
            UNKNOWN: (undone or (done,),),
        }[self.told]

    def agrees(self, has: Has) -> bool:
        if self.changes:
            return True
        if isinstance(self.told, bool):
            return (self.server in has) is self.told
        return bool(frozenset(self.told) == has)

    def __str__(self) -> str:
        told = sorted(self.told) if isinstance(self.told, frozenset) else self.told
        asked = "" if self.at is None else f" as of {self.at:.3f}"
        span = f"{self.invoked_at:.3f}..{self.returned_at:.3f}"
        return f"{span} {self.client}: {self.call} {self.server[:8]}{asked}: {told}"


@dataclass
class History:
    """What all clients did to one volume; `shared`: several servers may have it at once.

    `commit_s`: for so long nobody may see what was recorded, so that what was so at a moment is
    what others see so much later at most.
    """

    shared: bool = False
    commit_s: float = 0.0
    first: Has = frozenset()
    calls: list[Called] = field(default_factory=list)


def unexplained(history: History) -> str | None:
    """None if an order explains all of it; else how far one comes, and what it meets there."""
    try:
        calls = sorted(_placed(history), key=lambda each: (each.invoked_at, each.returned_at))
    except _ToldTwiceError as error:
        return str(error)
    return _Search(calls, history).run()


class _ToldTwiceError(Exception):
    """Two answers of one moment differ."""


def _placed(history: History) -> Iterator[Called]:
    """Reads as of a moment are put there, each moment once."""
    known: dict[float, Called] = {}
    for each in history.calls:
        if each.at is None:
            yield each
            continue
        before = known.setdefault(each.at, each)
        if before.told != each.told:
            raise _ToldTwiceError(f"what was so then has changed:\n  {before}\n  {each}")
    for at, each in known.items():
        until = at + history.commit_s
        yield Called(each.client, each.call, at, until, each.told, each.server, at)


def _after(step: Step, has: Has, *, shared: bool) -> Has | None:
    """Who has it after the step; None: it cannot be."""
    what, server = step
    if what == "detach":
        return has - {server} if server in has else None
    if server in has or (has and not shared):
        return None
    return has | {server}


#: A place of the search: which calls are over (bits), what others have begun, who has the volume.
_Place = tuple[int, tuple[tuple[int, tuple[Step, ...]], ...], Has]


class _Search:
    """Depth first, and nowhere twice."""

    def __init__(self, calls: Sequence[Called], history: History) -> None:
        self._calls, self._history = calls, history
        must = (1 << n for n, each in enumerate(calls) if each.returned_at < NEVER)
        self._must = sum(must)
        self._seen: set[_Place] = set()
        self._furthest: _Place = (0, (), history.first)

    def run(self) -> str | None:
        places: list[_Place] = [self._furthest]
        while places:
            place = self._with_reads(places.pop())
            if place in self._seen:
                continue
            self._seen.add(place)
            assert len(self._seen) <= STATES_MAX, f"more than {STATES_MAX} places: too many at once"
            if place[0] & self._must == self._must:
                return None
            if place[0].bit_count() > self._furthest[0].bit_count():
                self._furthest = place
            places += self._next(place)
        return self._told()

    def _open(self, over: int) -> list[int]:
        """The calls that may be next: nobody has returned before they were made."""
        end, found = NEVER, []
        for number, each in enumerate(self._calls):
            if each.invoked_at > end:
                break
            if not over >> number & 1:
                found.append(number)
                end = min(end, each.returned_at)
        return [n for n in found if self._calls[n].invoked_at <= end]

    def _with_reads(self, place: _Place) -> _Place:
        """A read that agrees is best made at once: nothing depends on it."""
        over, begun, has = place
        while True:
            reads = [
                number
                for number in self._open(over)
                if self._calls[number].ways() == ((),) and self._calls[number].agrees(has)
            ]
            if not reads:
                return over, begun, has
            for number in reads:
                over |= 1 << number

    def _next(self, place: _Place) -> Iterator[_Place]:
        over, begun, _ = place
        under_way, tried = dict(begun), set[Step]()
        for number in self._open(over):
            call = self._calls[number]
            ways = (under_way[number],) if number in under_way else call.ways()
            for way in ways if call.changes else ():
                if call.told == UNKNOWN:
                    if way[0] in tried:  # another one can do the same, and need not end either
                        continue
                    tried.add(way[0])
                yield from self._step(place, number, way)

    def _step(self, place: _Place, number: int, way: tuple[Step, ...]) -> Iterator[_Place]:
        over, begun, has = place
        others = tuple(each for each in begun if each[0] != number)
        if not way:
            yield over | 1 << number, others, has
            return
        after = _after(way[0], has, shared=self._history.shared)
        if after is None:
            return
        if len(way) == 1:
            yield over | 1 << number, others, after
        else:
            yield over, tuple(sorted((*others, (number, way[1:])))), after

    def _told(self) -> str:
        over, _, has = self._furthest
        left = [each for n, each in enumerate(self._calls) if not over >> n & 1]
        made = [each for n, each in enumerate(self._calls) if over >> n & 1]
        lines = [
            "no order explains all answers; the longest that does ends",
            *(f"  {each}" for each in made[-SHOWN:]),
            f"with the volume at {sorted(has)}, and then comes one of",
            *(f"  {each}" for each in left[:SHOWN]),
        ]
        return "\n".join(lines)
