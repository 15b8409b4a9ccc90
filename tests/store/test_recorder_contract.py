"""The eventsourcing library's own tests of a recorder and of a factory, on ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from eventsourcing.persistence import NotSupportedError, StoredEvent
from eventsourcing.utils import Environment

from ledger.log.persistence import Factory
from ledger.log.recorder import LedgerRecorder

# The module with the recorder contracts also holds tests of ciphers, and imports one that
# needs a cryptography package.  Nothing here encrypts: a name is enough to import it.
sys.modules.setdefault("eventsourcing.cipher", cast("Any", SimpleNamespace(AESCipher=None)))

from eventsourcing.tests.persistence import (  # noqa: E402
    AggregateRecorderTestCase,
    ApplicationRecorderTestCase,
    InfrastructureFactoryTestCase,
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


class TestFactory(InfrastructureFactoryTestCase[Factory]):
    """Built by the library from the environment.  What is refused: test_persistence_module.py."""

    @pytest.fixture(autouse=True)
    def _environment(self, database_url: str) -> None:
        settings = {"PERSISTENCE_MODULE": "ledger.log.persistence", "DATABASE_URL": database_url}
        self.env = Environment(env=settings)

    def expected_factory_class(self) -> type[Factory]:
        return Factory

    def expected_aggregate_recorder_class(self) -> type[LedgerRecorder]:
        return LedgerRecorder

    def expected_application_recorder_class(self) -> type[LedgerRecorder]:
        return LedgerRecorder

    def expected_tracking_recorder_class(self) -> NoReturn:
        raise NotImplementedError

    tracking_recorder_subclass = expected_tracking_recorder_class
    expected_process_recorder_class = expected_tracking_recorder_class

    def test_create_tracking_recorder(self) -> None:
        with pytest.raises(NotSupportedError):
            self.factory.tracking_recorder()

    def test_create_process_recorder(self) -> None:
        with pytest.raises(NotSupportedError):
            self.factory.process_recorder()

    def test_mapper_with_compressor(self) -> None:
        self.env[self.factory.COMPRESSOR_TOPIC] = "zlib"
        with pytest.raises(NotSupportedError):
            self.factory.mapper()

    # These make keys with a cryptography package; a cipher is refused as a compressor is.
    test_mapper_with_cipher: Any = None
    test_mapper_with_cipher_and_compressor: Any = None
    test_mapper_with_wrong_cipher_key: Any = None
