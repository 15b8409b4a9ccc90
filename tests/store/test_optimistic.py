"""Decisions on what a process has cached: stored if it is so, else taken again on the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import OperationalError

from aggregates import errors
from aggregates.base import Actor, EventContext
from aggregates.host import Host, host_uuid
from aggregates.volume import Volume
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.log.application import Ledger
from ledger.log.unit import Unit, run_optimistically

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
        claimed.append(sum(len(other.claims) for other in others))
        unit.get(Volume, volume_id).claim(by, server_id="s")
        unit.save(CONTEXT)

    run_optimistically(ledger, change)
    return claimed


def release(ledger: Ledger, volume_id: UUID, by: str) -> None:
    def change(unit: Unit) -> None:
        unit.get(Volume, volume_id).release(by)
        unit.save(CONTEXT)

    run_optimistically(ledger, change)


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
    assert other.load(Volume, id_).claims.keys() == {"c"}
    assert reads, "the log was asked"


def test_what_was_only_looked_at_is_as_the_cache_had_it(ledger: Ledger, other: Ledger) -> None:
    known, new = uuid4(), uuid4()
    claim(ledger, known, "a")
    release(ledger, known, "a")
    claim(other, known, "b")
    claim(other, new, "b")
    assert claim(ledger, uuid4(), "c", known) == [0, 1]
    assert claim(ledger, uuid4(), "d", new) == [0, 1], "what is not cached counts as new"


def test_nothing_to_store_is_an_answer_only_of_the_log(ledger: Ledger, other: Ledger) -> None:
    id_ = uuid4()
    claim(ledger, id_, "a")
    release(other, id_, "a")
    claim(other, id_, "b")
    release(ledger, id_, "b")
    assert other.load(Volume, id_).claims == {}


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

    assert run_optimistically(ledger, change) == 1


def test_a_decision_that_is_taken_again_begins_with_one_read(
    ledger: Ledger, other: Ledger, reads: list[set[UUID]]
) -> None:
    ids = [uuid4() for _ in range(4)]
    claim(other, ids[3], "a")
    claim(ledger, ids[0], "b", *ids[1:])
    assert reads == [set(ids)]


@pytest.mark.parametrize("cached", [True, False])
def test_a_fence_undoes_a_decision_that_did_not_know_of_it(
    ledger: Ledger, other: Ledger, cached: bool
) -> None:
    """Decision 0022, on the cache and on the log: a host that is only looked at is relied on."""
    epochs: list[int] = []

    def change(unit: Unit) -> None:
        epochs.append(unit.get(Host, host_uuid("h")).epoch)
        if len(epochs) == 1:
            other.save(fenced(other, "h"), context=CONTEXT)
        unit.get(Volume, uuid4()).claim("a", server_id="s")
        unit.save(CONTEXT)

    if cached:
        run_optimistically(ledger, change)
    else:
        ledger.retrying(lambda: change(Unit(ledger)))
    assert epochs == [0, 1]


def fenced(ledger: Ledger, name: str) -> Host:
    host = ledger.load(Host, host_uuid(name))
    host.fence("no answer", "powered off")
    return host


@pytest.mark.parametrize(
    "failure",
    [OperationalError("no answer"), PortError(ErrorKind.UNKNOWN, "timeout", "no answer")],
)
def test_a_failure_of_the_world_outside_is_not_taken_for_an_old_cache(
    ledger: Ledger, failure: Exception
) -> None:
    runs = []

    def change(unit: Unit) -> None:
        runs.append(unit)
        raise failure

    with pytest.raises(type(failure)):
        run_optimistically(ledger, change)
    assert len(runs) == 1


def test_an_error_after_the_save_does_not_decide_again(ledger: Ledger) -> None:
    runs = []

    def change(unit: Unit) -> None:
        runs.append(unit)
        unit.get(Volume, uuid4()).claim("a", server_id="s")
        unit.save(CONTEXT)
        raise KeyError("in the answer")

    with pytest.raises(KeyError):
        run_optimistically(ledger, change)
    assert len(runs) == 1


def test_events_of_one_save_are_stored_in_the_order_in_which_they_happened(
    ledger: Ledger,
) -> None:
    one, two = ledger.load(Volume, uuid4()), ledger.load(Volume, uuid4())
    held = {"server_id": "s"}
    one.record(Volume.Held, **held, attachment_id="first")
    two.record(Volume.Held, **held, attachment_id="second")
    one.record(Volume.Held, **held, attachment_id="third")
    ledger.save(two, one, context=CONTEXT)
    log = ledger.log_recorder.select_notifications(1, 10)
    assert [event.originator_id for event in log] == [one.id, two.id, one.id]
