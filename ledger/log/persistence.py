"""The log as a persistence module of the eventsourcing library.

Any application of the library runs on this log, with its ordering, shared commits and hash
chain, if its environment says so (each name may be prefixed with the application's):

    PERSISTENCE_MODULE=ledger.log.persistence
    DATABASE_URL=postgresql:///ledger

The schema must exist (`attachment-ledger db upgrade`); the library's CREATE_TABLE has no
effect.  Ids of aggregates are UUIDs.  What this log does not support is refused, never ignored:
ciphers and compressors (each body is JSON that `event_log` shows), snapshots, and tracking in
the same transaction (ledger projections have their own: projections.running.runner).
Decision 0030 says what the ledger itself uses of the library.
"""

from __future__ import annotations

from typing import Any, NoReturn

from eventsourcing.persistence import (
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
    NotSupportedError,
    Transcoder,
)
from eventsourcing.utils import Environment, EnvType

from ledger.log.mapper import LedgerMapper
from ledger.log.recorder import LedgerRecorder

DATABASE_URL = "DATABASE_URL"


class Factory(InfrastructureFactory[Any]):
    """Makes recorders on one database, and closes them."""

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        dsn = self.env.get(DATABASE_URL)
        if dsn is None:
            raise InfrastructureFactoryError(f"{DATABASE_URL} is not set: the log's database")
        self._dsn = dsn
        self._recorders: list[LedgerRecorder] = []

    def mapper(
        self,
        transcoder: Transcoder | None = None,
        mapper_class: type[Mapper[Any]] | None = None,
    ) -> Mapper[Any]:
        """Raises NotSupportedError if the environment names a cipher or a compressor."""
        made = super().mapper(transcoder, mapper_class or LedgerMapper)
        if made.cipher is not None or made.compressor is not None:
            _refuse("Bodies of this log are JSON: no cipher and no compressor.")
        return made

    def application_recorder(self) -> LedgerRecorder:
        recorder = LedgerRecorder(self._dsn)
        self._recorders.append(recorder)
        return recorder

    def aggregate_recorder(self, purpose: str = "events") -> LedgerRecorder:
        if purpose != "events":
            _refuse(f"This log has no {purpose}: turn IS_SNAPSHOTTING_ENABLED off.")
        return self.application_recorder()

    def tracking_recorder(self, tracking_recorder_class: type[Any] | None = None) -> NoReturn:
        del tracking_recorder_class
        _refuse("This log has no tracking recorder: use one of the library's, beside it.")

    def process_recorder(self) -> NoReturn:
        _refuse("This log has no process recorder: use one of the library's, beside it.")

    def close(self) -> None:
        """Store what is queued and close all connections.  Can be called twice."""
        while self._recorders:
            self._recorders.pop().close()


def _refuse(why: str) -> NoReturn:
    raise NotSupportedError(why)
