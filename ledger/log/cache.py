"""An LRU cache of aggregates, caught up from the log on every load.

Theory of operation.  `load` always asks the log, but only for the events after those that are
cached, for all wanted aggregates by one query.  So what is loaded is as of a moment after the
call began, whichever process wrote last, and a long stream costs no more to load than a short
one.  `cached` makes no query and may be out of date: it is for decisions that the append checks
(ledger.log.unit).

The cache holds what the log holds: read from it, or stored in it and acknowledged.  Callers
get copies, so neither a decision that is not stored nor a save that fails reaches the cache.
An older version never replaces a newer one.
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


class AggregateCache:
    """The aggregates of one log that were used last.  Thread-safe.

    `read` gives, for each id, the events after a version (None: all), as of one moment.
    """

    def __init__(
        self, read: Callable[[Mapping[UUID, int | None]], Mapping[UUID, Iterable[Any]]]
    ) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Aggregate] = OrderedDict()

    def load(self, wanted: Sequence[Key]) -> list[Any]:
        """The aggregates as they are now, in the order asked for.

        Two kinds may be asked for by one id: a foreign id may be anything's.  Their stream is one.
        """
        if not wanted:
            return []
        known = self._known(wanted)
        pairs = list(zip(wanted, known, strict=True))
        after: dict[UUID, int] = {}
        for (_, id_), found in pairs:
            version = found.version if found else 0
            after[id_] = min(version, after.get(id_, version))
        read = self._read({id_: version or None for id_, version in after.items()})
        events = {id_: list(news) for id_, news in read.items()}
        return [self._caught_up(key, found, events[key[1]]) for key, found in pairs]

    def cached(self, key: Key) -> Aggregate:
        """As it was when it was last loaded or kept; at version 0 if it is not cached."""
        [found] = self._known([key])
        return key[0](key[1]) if found is None else found.fork()

    def keep(self, stored: Iterable[Aggregate]) -> None:
        """Cache aggregates whose state is stored in the log."""
        with self._lock:
            for aggregate in stored:
                self._keep((type(aggregate), aggregate.id), aggregate.fork())

    def _caught_up(self, key: Key, found: Aggregate | None, news: list[Any]) -> Aggregate:
        kind, id_ = key
        aggregate = kind(id_) if found is None else found.fork()
        known = aggregate.version
        aggregate.follow(event for event in news if event.originator_version > known)
        if aggregate.version > known:
            self.keep([aggregate])
        return aggregate

    def _known(self, wanted: Sequence[Key]) -> list[Aggregate | None]:
        with self._lock:
            known = [self._kept.get(key) for key in wanted]
            for key, found in zip(wanted, known, strict=True):
                if found is not None:
                    self._kept.move_to_end(key)
            return known

    def _keep(self, key: Key, aggregate: Aggregate) -> None:
        known = self._kept.get(key)
        if known is None or known.version < aggregate.version:
            self._kept[key] = aggregate
        self._kept.move_to_end(key)
        while len(self._kept) > AGGREGATES_MAX:
            self._kept.popitem(last=False)
