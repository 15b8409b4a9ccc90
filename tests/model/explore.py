"""The explorer: every state that can be reached within bounds, breadth first, held to the rules.

Breadth first, so that the story of a violation is one of the shortest.  A state that was met
before, but for its ids and its past (`state.key`), is not gone on with.  When all states are known,
the way back from those at rest shows whether each can come to rest without a further fault,
request or act.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from aggregates.operation import Operation
from handlers.requests.operator import waits
from tests.model.looking import unowned
from tests.model.moves import MOVES, Step, steps
from tests.model.state import Left, State, key
from tests.model.words import named, told
from tests.model.world import (
    COMES_TO_REST,
    HOSTS,
    SERVER,
    VOLUMES,
    HostState,
    Wire,
    World,
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How large a model: what there is, and what may come."""

    volumes: int = 1
    faults: int = 1
    requests: int = 2
    acts: int = 0
    states_max: int = 10_000_000


@dataclass(frozen=True)
class Violation:
    """A rule that is broken, and the moves that lead there."""

    rule: str
    story: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        told_ = [f"  {number:2}. {text}" for number, text in enumerate(self.story, 1)]
        return "\n".join((f"BROKEN: {self.rule}", *told_, f"  then: {self.state}"))


@dataclass
class Explored:
    """What came of it; `complete`: nothing was left out within the bounds."""

    violations: list[Violation] = field(default_factory=list)
    states: int = 0
    transitions: int = 0
    at_rest: int = 0
    took_s: float = 0.0  # of one core
    complete: bool = True

    def __str__(self) -> str:
        return (
            f"{self.states} states, {self.transitions} transitions, {self.at_rest} at rest, "
            f"{self.took_s:.0f} s ({self.states / max(self.took_s, 0.01):.0f} states/s), "
            f"{'all of them' if self.complete else 'NOT all of them'}; "
            f"{len(self.violations)} violations"
        )


def first(bounds: Bounds) -> State:
    """A server that runs on the first host, and free volumes."""
    hosts = {name: HostState() for name in HOSTS}
    hosts[HOSTS[0]] = HostState(guests={SERVER: (True, ())})
    world = World(volumes=dict.fromkeys(VOLUMES[: bounds.volumes], "available"), hosts=hosts)
    left = Left(bounds.faults, bounds.requests, bounds.acts)
    state = State(world, left, {})
    registers = next(move for move in MOVES if move.name.endswith("tells what it has"))
    for name in HOSTS:
        registers.do(state, name, Wire())
    return state


class Explorer:
    """One exploration.  States are numbered as they are met; of old ones only that is kept."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._numbers: dict[bytes, int] = {}
        self._parents = array("i")
        self._how: list[str] = []
        self._texts: dict[str, str] = {}
        self._back: tuple[array[int], array[int]] = (array("i"), array("i"))  # free moves: from, to
        self._rests: list[int] = []
        self._seen = Explored()

    def run(self, *, until: int = 1) -> Explored:
        """Explore; stop at so many violations."""
        began, seen = time.process_time(), self._seen
        start = first(self._bounds)
        frontier = deque([(self._number(start, -1, "")[0], start)])
        while frontier and len(seen.violations) < until:
            if len(self._parents) >= self._bounds.states_max:
                seen.complete = False
                break
            number, state = frontier.popleft()
            frontier.extend(self._from(number, state))
        seen.complete = seen.complete and not frontier
        if seen.complete and not seen.violations:  # nobody knows what comes after one
            self._restless(until)
        seen.states, seen.at_rest = len(self._parents), len(self._rests)
        seen.took_s = time.process_time() - began
        return seen

    def _from(self, number: int, state: State) -> Iterator[tuple[int, State]]:
        """The states after this one that are new."""
        still, stuck = True, True  # no machine has anything to do; nobody has
        for step in steps(state, MOVES):
            to, new = self._number(step.state, number, step.text)
            self._seen.transitions += 1
            if to == number:
                continue
            if step.free:
                self._back[0].append(number)
                self._back[1].append(to)
                stuck, still = False, still and not step.machine
            if new and not self._judge(to, step):
                yield to, step.state
        open_ = [each for each in state.operations("running", "parked") if not _waits(each, state)]
        if still and not open_:
            self._at_rest(number, state)
        elif stuck:
            self._violated(f"{COMES_TO_REST}  {open_[0].id} is {open_[0].state}", number, state)

    def _number(self, state: State, parent: int, text: str) -> tuple[int, bool]:
        """Its number, and whether it is new."""
        known, number = key(state), len(self._parents)
        found = self._numbers.setdefault(known, number)
        if found == number:
            self._parents.append(parent)
            self._how.append(self._texts.setdefault(text, text))
        return found, found == number

    def _judge(self, number: int, step: Step) -> bool:
        """Whether a rule is broken; then nobody asks what comes after it."""
        broken = [*step.state.world.broken, *step.state.world.second_writers()]
        for rule in broken[:1]:
            self._violated(rule, number, step.state)
        return bool(broken)

    def _at_rest(self, number: int, state: State) -> None:
        """Nothing happens any more by itself, and nothing is under way."""
        self._rests.append(number)
        for rule in unowned(state):
            self._violated(rule, number, state)

    def _violated(self, rule: str, number: int, state: State) -> None:
        self._seen.violations.append(
            Violation(named(rule, state), self._story(number), told(state))
        )

    def _story(self, number: int) -> tuple[str, ...]:
        story: list[str] = []
        while self._parents[number] >= 0:
            story.append(self._how[number])
            number = self._parents[number]
        return tuple(reversed(story))

    def _restless(self, until: int) -> None:
        """From each state there is a way to one at rest, of free moves alone."""
        into: dict[int, list[int]] = {}
        for source, to in zip(*self._back, strict=True):
            into.setdefault(to, []).append(source)
        reached, todo = set(self._rests), list(self._rests)
        while todo:
            for source in into.get(todo.pop(), ()):
                if source not in reached:
                    reached.add(source)
                    todo.append(source)
        for number in range(len(self._parents)):
            if number not in reached and len(self._seen.violations) < until:
                story = self._story(number)
                self._seen.violations.append(Violation(COMES_TO_REST, story, "for ever"))


def _waits(operation: Operation, state: State) -> bool:
    """For somebody to undo what was done past us: parked, or trying again and again."""
    return state.world.by_hand and (operation.state == "parked" or waits(operation))


def explore(bounds: Bounds, *, until: int = 1) -> Explored:
    """All of a model within these bounds, or as far as the first violations."""
    return Explorer(bounds).run(until=until)
