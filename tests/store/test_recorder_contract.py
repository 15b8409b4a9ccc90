"""The eventsourcing library's own tests of a recorder, on ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from eventsourcing.persistence import StoredEvent

from ledger.log.recorder import LedgerRecorder

# The module with the recorder contracts also holds tests of ciphers, and imports one that
# needs a cryptography package.  Nothing here encrypts: a name is enough to import it.
sys.modules.setdefault("eventsourcing.cipher", cast("Any", SimpleNamespace(AESCipher=None)))

from eventsourcing.tests.persistence import (  # noqa: E402
    AggregateRecorderTestCase,
    ApplicationRecorderTestCase,
    NonInterleavingNotificationIDsBaseCase,
)


class _WithoutPositions(LedgerRecorder):
    """The library's aggregate recorders return no positions; this is all that differs."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> None:  # type: ignore[override]
        super().insert_events(stored_events, **kwargs)


class _OnAFreshDatabase:
    recorder_class: type[LedgerRecorder] = LedgerRecorder
    recorder: LedgerRecorder

    @pytest.fixture(autouse=True)
    def _recorder(self, database_url: str) -> Iterator[None]:
        self.recorder = self.recorder_class(database_url)
        yield
        self.recorder.close()

    def create_recorder(self) -> LedgerRecorder:
        return self.recorder


class TestAggregateRecorder(_OnAFreshDatabase, AggregateRecorderTestCase):
    recorder_class = _WithoutPositions


class TestApplicationRecorder(_OnAFreshDatabase, ApplicationRecorderTestCase[LedgerRecorder]):
    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestPositionsDoNotInterleave(_OnAFreshDatabase, NonInterleavingNotificationIDsBaseCase):
    pass
