"""The log as a persistence module of the eventsourcing library, for any application of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    InfrastructureFactory,
    InfrastructureFactoryError,
    IntegrityError,
    NotSupportedError,
    StoredEvent,
    Tracking,
)
from eventsourcing.tests.application import BankAccounts
from eventsourcing.utils import get_topic

from aggregates.volume import Volume
from ledger.log.application import Ledger
from ledger.log.chain import ChainCheckpoint
from ledger.log.recorder import LedgerRecorder
from tests.store.months import proven

Db = psycopg.Connection[Any]


class Dog(Aggregate):
    """The aggregate of the library's tutorial."""

    @event("Registered")
    def __init__(self, name: str) -> None:
        self.name = name
        self.tricks: list[str] = []

    @event("TrickAdded")
    def add_trick(self, trick: str) -> None:
        self.tricks.append(trick)


class DogSchool(Application[UUID]):
    """The application of the library's tutorial, as it stands there."""

    def register_dog(self, name: str) -> UUID:
        dog = Dog(name)
        self.save(dog)
        return dog.id

    def add_trick(self, dog_id: UUID, trick: str) -> None:
        dog: Dog = self.repository.get(dog_id)
        dog.add_trick(trick)
        self.save(dog)

    def get_dog(self, dog_id: UUID) -> dict[str, Any]:
        dog: Dog = self.repository.get(dog_id)
        return {"name": dog.name, "tricks": tuple(dog.tricks)}


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    return {"PERSISTENCE_MODULE": "ledger.log.persistence", "DATABASE_URL": database_url}


@pytest.fixture
def school(environment: dict[str, str]) -> Iterator[DogSchool]:
    with DogSchool(environment) as school:
        yield school


def test_the_librarys_tutorial_runs_on_this_log(
    school: DogSchool, environment: dict[str, str]
) -> None:
    dog_id = school.register_dog("Fido")
    school.add_trick(dog_id, "roll over")
    school.add_trick(dog_id, "play dead")

    with DogSchool(environment) as after_a_restart:
        assert after_a_restart.get_dog(dog_id) == {
            "name": "Fido",
            "tricks": ("roll over", "play dead"),
        }
        items = after_a_restart.notification_log["1,10"].items
    assert [item.id for item in items] == [1, 2, 3]
    assert [item.topic.rpartition(".")[2] for item in items] == [
        "Registered",
        "TrickAdded",
        "TrickAdded",
    ]


def test_two_who_change_one_aggregate_at_once_are_told(school: DogSchool) -> None:
    dog_id = school.register_dog("Fido")
    one: Dog = school.repository.get(dog_id)
    two: Dog = school.repository.get(dog_id)
    one.add_trick("roll over")
    two.add_trick("play dead")
    school.save(one)
    with pytest.raises(IntegrityError):
        school.save(two)
    assert school.get_dog(dog_id)["tricks"] == ("roll over",)


def test_the_librarys_example_with_types_of_its_own_runs_on_this_log(
    environment: dict[str, str],
) -> None:
    """Decimals, times and e-mail addresses go through the library's transcoder."""
    with BankAccounts({**environment, "IS_SNAPSHOTTING_ENABLED": "n"}) as bank:
        with pytest.raises(BankAccounts.AccountNotFoundError):
            bank.get_account(uuid4())
        account_id = bank.open_account("Alice", "alice@example.com")
        for amount in ("10.00", "25.00", "30.00"):
            bank.credit_account(account_id, Decimal(amount))
        assert bank.get_balance(account_id) == Decimal("65.00")
        assert bank.get_account(account_id).email_address.address == "alice@example.com"
        assert len(bank.notification_log["1,10"].items) == 4
        half: Any = bank.repository.get(account_id, version=2)
        assert half.balance == Decimal("10.00")


def test_an_application_beside_the_ledger_shares_its_order_and_its_chain(
    school: DogSchool, ledger: Ledger, db: Db
) -> None:
    dog_id = school.register_dog("Fido")
    volume = ledger.load(Volume, uuid4())
    volume.record(Volume.Held, server_id=str(uuid4()), attachment_id=str(uuid4()))
    assert ledger.save(volume) == 2
    school.add_trick(dog_id, "roll over")

    shown = db.execute("SELECT position, body ->> 'trick' FROM event_log ORDER BY position")
    assert shown.fetchall() == [(1, None), (2, None), (3, "roll over")]
    checkpoint: ChainCheckpoint = proven(db).checkpoint
    assert checkpoint.position == 3


def test_a_subscription_of_the_library_follows_this_log(school: DogSchool) -> None:
    dog_id = school.register_dog("Fido")
    with school.recorder.subscribe(gt=0) as subscription:
        assert next(subscription).originator_id == dog_id
        school.add_trick(dog_id, "roll over")
        assert next(subscription).originator_version == 2


def test_a_variable_may_be_for_one_application_only(database_url: str) -> None:
    environment = {
        "DOGSCHOOL_PERSISTENCE_MODULE": "ledger.log.persistence",
        "DOGSCHOOL_DATABASE_URL": database_url,
    }
    with DogSchool(environment) as school:
        assert isinstance(school.recorder, LedgerRecorder)
    with Application[UUID](environment) as other:
        assert not isinstance(other.recorder, LedgerRecorder)


def test_without_a_database_the_factory_says_which_variable_is_missing() -> None:
    with pytest.raises(InfrastructureFactoryError, match="DATABASE_URL"):
        InfrastructureFactory.construct({"PERSISTENCE_MODULE": "ledger.log.persistence"})


class Rot13:
    """A cipher, as far as the library looks."""

    def __init__(self, environment: Any) -> None:
        del environment


@pytest.mark.parametrize(
    "setting",
    [
        {"COMPRESSOR_TOPIC": zlib.__name__},
        {"CIPHER_TOPIC": get_topic(Rot13)},
        {"IS_SNAPSHOTTING_ENABLED": "y"},
    ],
)
def test_what_would_be_lost_or_make_the_log_unreadable_is_refused(
    environment: dict[str, str], setting: dict[str, str]
) -> None:
    with pytest.raises(NotSupportedError):
        DogSchool({**environment, **setting})


def test_tracking_is_refused_and_not_left_out(school: DogSchool) -> None:
    stored = [StoredEvent(uuid4(), 1, "T.Happened", b"{}")]
    with pytest.raises(NotSupportedError):
        school.recorder.insert_events(stored, tracking=Tracking("upstream", 1))
    assert school.recorder.max_notification_id() is None
    for recorder in (school.factory.tracking_recorder, school.factory.process_recorder):
        with pytest.raises(NotSupportedError):
            recorder()


def test_the_environment_of_the_process_does_not_change_how_the_ledger_stores(
    database_url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("", "LEDGER_"):
        monkeypatch.setenv(f"{name}COMPRESSOR_TOPIC", "zlib")
        monkeypatch.setenv(f"{name}PERSISTENCE_MODULE", "eventsourcing.popo")
        monkeypatch.setenv(f"{name}TRANSCODER_TOPIC", "eventsourcing.persistence:JSONTranscoder")
        monkeypatch.setenv(f"{name}DATABASE_URL", "postgresql://nowhere")
    with closing(Ledger(database_url)) as ledger:
        volume = ledger.load(Volume, uuid4())
        volume.record(Volume.Held, server_id="s", attachment_id="a")
        ledger.save(volume)
    assert db.execute("SELECT body ->> 'server_id' FROM event_log").fetchall() == [("s",)]
