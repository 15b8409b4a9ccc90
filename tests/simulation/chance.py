"""What happens by chance in a simulation, all of it drawn from one seed.

`Chance` stands where the generic tests have a `Trouble`: it is asked at every point.
There it may let something go wrong, and before that it may let something else happen,
so that every call of a port and every save can be overtaken.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from aggregates.base import Aggregate, EventContext
from ledger.log.cache import AggregateCache
from tests.memory import Crash, MemoryStore, Trouble

#: Where the code under test takes an id from nowhere.
ID_SOURCES = (
    "ledger.core.requests.uuid4",
    "ledger.core.steps.attachments.uuid4",
    "host_agent.verbs.cinder_flow.uuid4",
)


class Chance(Trouble):
    """The seed's luck; `calm` until the storm begins, and again at the end.

    `meanwhile` is called between two points, now and then: somebody else is faster.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.calm = True
        self.call_rate = self.random.choice([0.0, 0.01, 0.03, 0.08])
        self.save_rate = self.random.choice([0.0, 0.005, 0.02])
        self.meanwhile_rate = self.random.choice([0.0, 0.02, 0.1])
        self.meanwhile: Callable[[], object] = lambda: None
        self._nested = False
        #: How many calls and saves went wrong.
        self.troubled = 0

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        if self.calm:
            return None
        if not self._nested and self.random.random() < self.meanwhile_rate:
            self.let_others()
        rate = self.save_rate if point == "save" else self.call_rate
        if self.random.random() >= rate:
            return None
        self.troubled += 1
        return self.random.choice(modes)

    def let_others(self) -> None:
        """Something else happens, unless this is within such a thing."""
        if self._nested:
            return
        self._nested = True
        try:
            self.meanwhile()
        finally:
            self._nested = False

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    @contextmanager
    def ids(self) -> Iterator[None]:
        """All ids come from the seed, so that it repeats exactly."""
        with ExitStack() as patched:
            for source in ID_SOURCES:
                patched.enter_context(patch(source, self.new_id))
            yield


class Mortal(Trouble):
    """The points of one life of a process: after its death it does nothing more."""

    def __init__(self, chance: Chance, lives: Callable[[], bool]) -> None:
        super().__init__()
        self._chance, self._lives = chance, lives

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        mode = self._chance.at(point, modes)
        if not self._lives():
            raise Crash
        return mode


class Log(MemoryStore):
    """The log in memory, fast enough for thousands of events; tells what was saved."""

    def __init__(self, trouble: Callable[[], Trouble], saved: Callable[[], object]) -> None:
        super().__init__(trouble)
        self._saved = saved
        self._saves = 0

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        return self._cache.load(wanted)

    def save(self, *aggregates: Aggregate, context: EventContext) -> int:
        try:
            return super().save(*aggregates, context=context)
        finally:
            self._saved()

    def beside(self) -> Log:
        """The same log, as another process has read it."""
        other = copy.copy(self)
        other._cache = AggregateCache(other._events_after)
        return other

    def keep(self, stored: list[Aggregate]) -> None:
        """As if each third were yet another process's: what is cached is often old."""
        self._saves += 1
        if self._saves % 3:
            super().keep(stored)
