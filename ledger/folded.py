"""Aggregates as they were when they were last read: what is read again is only what is new.

Theory of operation.  Whoever loads gets an aggregate of its own, as of a moment after the
call began: the log is always asked, but only for the events after those that are folded
already, for all wanted aggregates at once.  So nothing here can be stale, whichever process
wrote last, and a stream that grows for ever costs no more to load than a new one.

What is kept comes from the log alone.  It is never changed and never handed out, only its
twins are: neither what a caller decides on its own, nor a save that fails, reaches it.  Of
several threads that read the same the last one's stays; each is right, one may be older.

At most AGGREGATES_MAX are kept, those used last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from aggregates.base import Aggregate

#: An operation with its plan takes about 12 KB, any other some hundred bytes to 2 KB.
AGGREGATES_MAX = 4_096

Key = tuple[type[Aggregate], UUID]


class Folded:
    """The aggregates of one log.  Thread-safe.

    `read` gives, for each id, the events after a version (None: all), of one moment.
    """

    def __init__(
        self, read: Callable[[Mapping[UUID, int | None]], Mapping[UUID, Iterable[Any]]]
    ) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Aggregate] = OrderedDict()

    def load(self, wanted: Sequence[Key]) -> list[Any]:
        """The aggregates as they are now, in the order asked for."""
        if not wanted:
            return []
        known = self._known(wanted)
        pairs = list(zip(wanted, known, strict=True))
        events = self._read({id_: found.version if found else None for (_, id_), found in pairs})
        return [self._followed(key, found, list(events[key[1]])) for key, found in pairs]

    def glimpse(self, key: Key) -> Aggregate | None:
        """A twin of what is kept, which may be old; nothing is asked."""
        [found] = self._known([key])
        return found and found.twin()

    def _followed(self, key: Key, found: Aggregate | None, news: list[Any]) -> Aggregate:
        kind, id_ = key
        aggregate = kind(id_) if found is None else found.twin()
        if news:
            aggregate.follow(news)
            self._keep(key, aggregate.twin())
        return aggregate

    def _known(self, wanted: Sequence[Key]) -> list[Aggregate | None]:
        with self._lock:
            for key in wanted:
                if key in self._kept:
                    self._kept.move_to_end(key)
            return [self._kept.get(key) for key in wanted]

    def _keep(self, key: Key, aggregate: Aggregate) -> None:
        with self._lock:
            self._kept[key] = aggregate
            self._kept.move_to_end(key)
            while len(self._kept) > AGGREGATES_MAX:
                self._kept.popitem(last=False)
