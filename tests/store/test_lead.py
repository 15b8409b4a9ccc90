"""Who leads, and who wakes whom: whoever is interrupted, the others go on."""

from __future__ import annotations

from uuid import uuid4

import pytest
from eventsourcing.persistence import StoredEvent

from ledger.log.recorder import LedgerRecorder
from ledger.log.writer import Append, encode


def stored() -> list[StoredEvent]:
    return [StoredEvent(uuid4(), 1, "T", b"{}")]


def an_append() -> Append:
    return encode(stored(), None)


@pytest.mark.parametrize("lead_came", [False, True])
def test_who_is_interrupted_while_waiting_takes_the_append_back_and_hands_on_the_lead(
    recorder: LedgerRecorder, lead_came: bool
) -> None:
    writer = recorder.writer
    busy, lost = (an_append() for _ in range(2))
    writer._leader = busy
    writer._join(lost)
    if lead_came:
        writer._pass_on(busy)
    writer._withdraw(lost)
    writer._pass_on(lost)
    if not lead_came:
        writer._pass_on(busy)
    assert recorder.insert_events(stored()) == [1]


def test_the_lead_may_come_before_the_wait_for_it(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = recorder.writer
    busy = an_append()
    writer._leader = busy
    join = writer._join

    def join_and_be_next(mine: Append) -> bool:
        leads = join(mine)
        writer._pass_on(busy)
        return leads

    monkeypatch.setattr(writer, "_join", join_and_be_next)
    assert recorder.insert_events(stored()) == [1]


@pytest.mark.parametrize("in_time", [True, False])
def test_who_is_interrupted_when_answered_keeps_nobody_asleep(
    recorder: LedgerRecorder, in_time: bool
) -> None:
    writer = recorder.writer
    first, lost, last = (an_append() for _ in range(3))
    if in_time:
        writer._withdraw(lost)
    writer._wake([first, lost, last])
    if not in_time:
        writer._withdraw(lost)

    assert first.turn.acquire(blocking=False)
    writer._pass_on(first)
    writer._pass_on(lost)

    assert last.turn.acquire(blocking=False)


def test_who_is_interrupted_while_leading_hands_on_the_lead(
    recorder: LedgerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = recorder.writer._send

    def interrupted(batch: list[Append]) -> None:
        monkeypatch.setattr(recorder.writer, "_send", send)
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder.writer, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorder.insert_events(stored())
    assert recorder.insert_events(stored()) == [1]
