"""The cloud that processes have left, as the invariants of the simulation look at one (0026)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from eventsourcing.persistence import StoredEvent

from handlers.engine.rules import Replay
from host_agent.simulated.host_state import HostState
from host_agent.storage.records import FileRecords
from projections.running.reader import logged
from tests.memory import MemoryStore, Trouble
from tests.simulation.cloud import Cloud
from tests.simulation.files import Files
from tests.simulation.invariants import broken_at_rest
from tests.stack import Stack
from tests.store.histories import MAPPER, Folded
from tests.world import CONTEXT

_LOG = """
SELECT position, recorded_at, topic, originator_id::text, originator_version, host,
       operation_id::text, body
  FROM events ORDER BY position
"""


class FileHost(HostState):
    """A host's state in its file."""

    def seen(self) -> dict[str, Any]:
        return self.read()


class Rested(Cloud):
    """What there is now; nothing happens here by itself."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.cinder = stack.cinder.model
        hosts: Any = {name: FileHost(stack.home / f"{name}.json") for name in stack.hosts}
        self.states = hosts
        self.lost = {name: set() for name in stack.hosts}
        self.isolated = {}
        self._excuse_nothing()
        self.files = Files(self, 0)
        self.files.here = False

    def broken(self) -> list[str]:
        """What is not as it should be: by the log as it is, Cinder, and the hosts' files."""
        self.records = {
            name: dict(FileRecords(self._stack.home / f"{name}-locks" / "connections"))
            for name in self.states
        }
        self._read_the_log()
        return list(broken_at_rest(self))

    def _read_the_log(self) -> None:
        self.store: Any = MemoryStore(Trouble)
        self.folded, self.fresh, self.refolded, self._looked_at = Folded(), {}, 0, {}
        self.replay = Replay()
        with psycopg.connect(self._stack.database_url) as db:
            rows = db.execute(_LOG, binary=True).fetchall()
        for event, stored in zip(logged(rows), map(_stored, rows), strict=True):
            self.folded.fold(event)
            self.store.streams.setdefault(UUID(event.originator_id), []).append(stored)
            self.store.log.append((MAPPER.to_domain_event(stored), CONTEXT))
        for position, (logged_event, _) in enumerate(self.store.log, 1):
            # To ask what is at rest.  Whether an append breaks a rule is asked in tests/stack.py.
            for _ in self.replay.follow([(position, logged_event)]):
                pass


def _stored(row: tuple[Any, ...]) -> StoredEvent:
    _, _, topic, id_, version, _, _, body = row
    return StoredEvent(UUID(id_), version, topic, body)
