"""Decisions on what a process supposes: stored if it is so, else taken again on the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates import errors
from aggregates.base import Actor, EventContext
from aggregates.volume import Volume
from ledger.log.application import Ledger
from ledger.log.unit import Unit, decided

CONTEXT = EventContext(actor=Actor(name="test"), request_id="req-1", cause="test")


@pytest.fixture
def other(database_url: str) -> Iterator[Ledger]:
    """Another process of the same service."""
    with closing(Ledger(database_url)) as ledger:
        yield ledger


@pytest.fixture
def reads(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[set[UUID]]:
    """The aggregates of each question to the log."""
    select, asked = ledger.log_recorder.select_streams, list[set[UUID]]()

    def noted(versions: Any) -> Any:
        asked.append(set(versions))
        return select(versions)

    monkeypatch.setattr(ledger.log_recorder, "select_streams", noted)
    return asked


def claim(ledger: Ledger, volume_id: UUID, by: str, *looked_at: UUID) -> list[int]:
    """Claim a volume having looked at others; how many of these are claimed, at each attempt."""
    claimed = []

    def change(unit: Unit) -> None:
        others = [unit.get(Volume, id_) for id_ in looked_at]
        claimed.append(sum(other.claimant is not None for other in others))
        unit.get(Volume, volume_id).claim(by, server_id="s")
        unit.save(CONTEXT)

    decided(ledger, change)
    return claimed


def release(ledger: Ledger, volume_id: UUID, by: str) -> None:
    def change(unit: Unit) -> None:
        unit.get(Volume, volume_id).release(by)
        unit.save(CONTEXT)

    decided(ledger, change)


def test_what_this_process_stored_itself_is_not_read(
    ledger: Ledger, reads: list[set[UUID]]
) -> None:
    new, known = uuid4(), uuid4()
    claim(ledger, known, "a")
    release(ledger, known, "a")
    assert claim(ledger, new, "b", known) == [0]
    assert claim(ledger, known, "c", new) == [1]
    assert reads == []


def test_a_stream_that_another_process_has_moved_is_read_and_decided_on_again(
    ledger: Ledger, other: Ledger, reads: list[set[UUID]]
) -> None:
    id_ = uuid4()
    claim(ledger, id_, "a")
    release(other, id_, "a")
    claim(other, id_, "b")
    with pytest.raises(errors.ClaimedError, match="operation b"):
        claim(ledger, id_, "c")
    release(other, id_, "b")
    claim(ledger, id_, "c")
    assert other.load(Volume, id_).claimant == "c"
    assert reads, "the log was asked"


def test_what_was_only_looked_at_is_as_it_was_supposed_to_be(ledger: Ledger, other: Ledger) -> None:
    known, new = uuid4(), uuid4()
    claim(ledger, known, "a")
    release(ledger, known, "a")
    claim(other, known, "b")
    claim(other, new, "b")
    assert claim(ledger, uuid4(), "c", known) == [0, 1]
    assert claim(ledger, uuid4(), "d", new) == [0, 1], "what is not known is supposed to be new"


def test_nothing_to_store_is_an_answer_only_of_the_log(ledger: Ledger, other: Ledger) -> None:
    id_ = uuid4()
    claim(ledger, id_, "a")
    release(other, id_, "a")
    claim(other, id_, "b")
    release(ledger, id_, "b")
    assert other.load(Volume, id_).claimant is None


def test_what_a_mixture_of_old_and_new_makes_impossible_is_decided_on_again(
    ledger: Ledger,
) -> None:
    attempts = []

    def change(unit: Unit) -> int:
        attempts.append(unit)
        if len(attempts) == 1:
            raise KeyError("a device that is not there")
        unit.get(Volume, uuid4()).claim("a", server_id="s")
        return unit.save(CONTEXT)

    assert decided(ledger, change) == 1
