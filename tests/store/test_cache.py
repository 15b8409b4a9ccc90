"""Aggregates that are read again: current whoever wrote, untouched by what was not stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from aggregates.base import Actor, Aggregate, EventContext
from aggregates.operation import Operation, StepStatus
from aggregates.volume import Volume
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.wire import plain
from ledger.log import cache
from ledger.log.application import ConflictError, Ledger
from ledger.log.cache import AggregateCache

CONTEXT = EventContext(actor=Actor(name="test"), request_id="req-1", cause="test")


def hold(ledger: Ledger, volume_id: UUID, attachment_id: str) -> None:
    volume = ledger.load(Volume, volume_id)
    volume.record(Volume.Held, server_id=str(uuid4()), attachment_id=attachment_id)
    ledger.save(volume, context=CONTEXT)


def test_what_another_process_stored_is_seen_by_the_next_load(
    ledger: Ledger, database_url: str
) -> None:
    id_ = uuid4()
    hold(ledger, id_, "one")
    assert list(ledger.load(Volume, id_).holders) == ["one"]
    with closing(Ledger(database_url)) as other:
        hold(other, id_, "two")
    assert list(ledger.load(Volume, id_).holders) == ["one", "two"]


def test_what_is_kept_is_not_read_again(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new = uuid4(), uuid4()
    hold(ledger, known, "one")
    select, read = ledger.log_recorder.select_streams, []

    def noted(versions: Mapping[UUID, int | None]) -> Any:
        streams = select(versions)
        read.append([(versions[id_], len(streams[id_])) for id_ in versions])
        return streams

    monkeypatch.setattr(ledger.log_recorder, "select_streams", noted)
    with closing(Ledger(database_url)) as other:
        hold(other, new, "one")
    ledger.load_many((Volume, known), (Volume, new))
    assert read == [[(1, 0), (None, 1)]], "what was stored here is known, and so what was read"
    with closing(Ledger(database_url)) as other:
        hold(other, new, "two")
    hold(ledger, known, "two")
    ledger.load_many((Volume, known), (Volume, new))
    assert read[1:] == [[(1, 0)], [(2, 0), (1, 1)]]


def test_what_was_decided_and_not_stored_is_in_nothing_loaded_later(ledger: Ledger) -> None:
    id_ = uuid4()
    hold(ledger, id_, "one")
    first, second = ledger.load(Volume, id_), ledger.load(Volume, id_)
    first.record(Volume.Held, server_id="s", attachment_id="first")
    second.record(Volume.Held, server_id="s", attachment_id="second")
    ledger.save(second, context=CONTEXT)
    with pytest.raises(ConflictError):
        ledger.save(first, context=CONTEXT)
    again = ledger.load(Volume, id_)
    assert list(again.holders) == ["one", "second"]
    again.record(Volume.Held, server_id="s", attachment_id="never saved")
    assert list(ledger.load(Volume, id_).holders) == ["one", "second"]


def test_a_conflict_is_decided_again_on_what_is_stored(ledger: Ledger) -> None:
    id_, seen = uuid4(), []
    hold(ledger, id_, "one")

    def change() -> None:
        volume = ledger.load(Volume, id_)
        seen.append(volume.version)
        if len(seen) == 1:
            hold(ledger, id_, "faster")
        volume.record(Volume.Held, server_id="s", attachment_id="mine")
        ledger.save(volume, context=CONTEXT)

    ledger.retrying(change)
    assert seen == [1, 2]
    assert list(ledger.load(Volume, id_).holders) == ["one", "faster", "mine"]


def test_the_cache_asks_nobody_and_what_is_older_replaces_nothing(
    ledger: Ledger, database_url: str
) -> None:
    id_ = uuid4()
    assert ledger.cached(Volume, id_).version == 0
    hold(ledger, id_, "one")
    older = ledger.load(Volume, id_)
    hold(ledger, id_, "two")
    with closing(Ledger(database_url)) as other:
        hold(other, id_, "three")
    assert list(ledger.cached(Volume, id_).holders) == ["one", "two"]
    ledger.load(Volume, id_)
    ledger._cache.keep([older])
    assert list(ledger.cached(Volume, id_).holders) == ["one", "two", "three"]


def test_a_log_that_has_lost_its_end_is_read_anew(ledger: Ledger, database_url: str) -> None:
    """As behind a standby that took over: it had not heard of all that was acknowledged."""
    id_ = uuid4()
    hold(ledger, id_, "one")
    hold(ledger, id_, "two")
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM events WHERE position = 2")
        db.execute("UPDATE log_head SET position = 1")
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'attachment-ledger writer'"
        )
    with closing(Ledger(database_url)) as other:
        hold(other, id_, "another")

    ledger.retrying(lambda: hold(ledger, id_, "three"))

    assert list(ledger.load(Volume, id_).holders) == ["one", "another", "three"]


def test_two_kinds_by_one_id_have_one_version(ledger: Ledger) -> None:
    """Otherwise whoever relies on both would be refused for ever."""
    id_, other = uuid4(), Volume(uuid4())
    hold(ledger, id_, "one")  # so it is known as a volume, and not as an operation
    volume, operation = ledger.load_many((Volume, id_), (Operation, id_))
    assert (volume.version, operation.version) == (1, 1)
    other.record(Volume.Held, server_id="s", attachment_id="a")
    ledger.save(volume, operation, other, context=CONTEXT)


def test_no_more_are_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "AGGREGATES_MAX", 2)
    asked: list[int | None] = []

    def read(versions: Mapping[UUID, int | None]) -> dict[UUID, list[Any]]:
        asked.extend(versions.values())
        return {id_: [] if version else [_held(id_)] for id_, version in versions.items()}

    kept, ids = AggregateCache(read), [uuid4() for _ in range(3)]
    for id_ in (ids[0], ids[1], ids[0], ids[2], ids[0], ids[1]):
        assert kept.load([(Volume, id_)])[0].version == 1
    assert asked == [None, None, 1, None, 1, None], "the one that was not used is gone"


def _held(id_: UUID) -> Any:
    return Volume.Held(originator_id=id_, originator_version=1, server_id="s", attachment_id="a")


def test_what_is_recorded_on_a_fork_is_not_seen_on_the_original() -> None:
    """In every container that an operation changes."""
    operation = Operation(uuid4())
    lane = plain(
        Lane(
            server_id="s",
            volume_id="v",
            bdm_id="b",
            attachment_id=None,
            device_name=None,
            new=LaneSide(volume_id="w"),
        )
    )
    steps = [{"name": "connect", "do": "x", "undo": None}]
    plan = {"lanes": [lane], "stages": [{"place": "host", "side": "new", "steps": steps}]}
    operation.record(
        Operation.OperationStarted, flow="f", server_id="s", plan=plan, request_id="r", actor={}
    )
    operation.record(
        Operation.RunStarted, run=1, lane=0, steps=["connect"], undo=False, host="h", epoch=0
    )
    before, fork = _state(operation), operation.fork()
    assert _state(fork) == before
    outputs = {"disk": {"path": "/dev/x"}, "device_name": "vdb"}
    result = {"run": 1, "lane": 0, "step": "connect", "undo": False}
    fork.record(Operation.StepSucceeded, **result, outputs=outputs, took_ms=1)
    fork.record(Operation.UnwindRequested, reason="why")
    fork.record(
        Operation.RunStarted, run=2, lane=0, steps=["connect"], undo=True, host="i", epoch=1
    )
    assert fork.history.of_step(0, "connect", undo=False).status is StepStatus.DONE
    assert _state(operation) == before


def _state(aggregate: Aggregate) -> str:
    return repr(vars(aggregate))
