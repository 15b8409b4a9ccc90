"""A service that is stopped (SIGSTOP) inside a dispatch, for longer than its lease: `make nightly`.

Two processes serve one log.  Cinder stops the one that asks it, so that the answer waits for a
process that stands still; the other one does its work; then the first goes on as if nothing had
been.  All points at which this may happen, without processes: tests/flows/test_overtaken.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from ledger.trial.cinder.model.rows import StoredAttachment
from tests.stack import Stack, eventually, running_stack

SERVICES = (0, 1)


class Stopper:
    """When Cinder is asked for `call`, whoever holds the lease is stopped, before the answer.

    What is asked is done all the same, in the same turn of Cinder's loop, and the answer waits
    at the socket: nobody else comes in between.
    """

    def __init__(self, stack: Stack, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack, self._call = stack, call
        self._note = stack.cinder.model.note_call
        self.stopped: int | None = None
        monkeypatch.setattr(stack.cinder.model, "note_call", self._noted)

    def _noted(self, call: str, **ids: str | None) -> None:
        self._note(call, **ids)
        if call == self._call and self.stopped is None:
            number = self._holder()
            self._stack.components[number].pause()
            self.stopped = number

    def _holder(self) -> int:
        """A holder's name begins with its address (decision 0033)."""
        with psycopg.connect(self._stack.database_url) as db:
            [(holder,)] = db.execute("SELECT holder FROM leases").fetchall()
        [number] = [n for n in SERVICES if f":{self._stack.ports[n]}/" in holder]
        return number


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    """Two services, an agent, and two running servers."""
    with running_stack(tmp_path, database_url) as running:
        for _ in range(2):
            running.add_server()
        for number in SERVICES:
            running.start_service(number)
        running.start_agent()
        running.wait_for_host()
        yield running


class Overtaken:
    """Somebody attaches a volume; a service is stopped at `call`, and the other does its work.

    The agent stands still meanwhile, so that the volume stays reserved.
    """

    def __init__(self, stack: Stack, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack, (self.server, self.other) = stack, stack.servers
        self.volume = stack.add_volume(multiattach=True)
        # One that was available is not asked for reservations (decision 0098).
        stack.completed(stack.attach(self.other, self.volume))
        self._before = stack.cinder.model.counts["attachment_create"]
        self._agent = stack.agents["compute-1"]
        self._agent.pause()
        stopper = Stopper(stack, call, monkeypatch)
        self._pool = ThreadPoolExecutor()
        self._asked = self._pool.submit(stack.attach, self.server, self.volume)
        eventually(lambda: stopper.stopped is not None, "one of them is stopped")
        assert stopper.stopped is not None
        self.first, second = stack.components[stopper.stopped], 1 - stopper.stopped
        path = f"/v2.1/servers/{self.server}/os-volume_attachments/{self.volume}"
        eventually(lambda: stack.get(path, second).ok, "the other one has done its work")
        assert len(self.rows) == 1
        self.first.go_on()

    @property
    def rows(self) -> list[StoredAttachment]:
        rows = self.stack.cinder.model.attachments_of(self.volume)
        return [row for row in rows if row.instance == self.server]

    @property
    def creates(self) -> int:
        return self.stack.cinder.model.counts["attachment_create"] - self._before

    def ends_well(self) -> None:
        """Cinder has the attachment that the log has, and nothing is left after a detach."""
        model = self.stack.cinder.model
        self._agent.go_on()
        self.stack.completed(self._asked.result())
        self._pool.shutdown()
        path = f"/v1/attachments?volume={self.volume}&server={self.server}"
        shown = self.stack.get(path).json()["attachments"]
        assert [(row.id, row.status) for row in self.rows] == [
            (each["attachment_id"], "attached") for each in shown
        ]
        for server in (self.server, self.other):
            assert model.volume(self.volume).status == "in-use"
            self.stack.completed(self.stack.detach(server, self.volume))
        assert model.attachments_of(self.volume) == []
        assert model.volume(self.volume).status == "available"


@pytest.mark.nightly
def test_whoever_was_stopped_before_it_asked_takes_back_what_it_makes_then(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, and found none that it could take over."""
    overtaken = Overtaken(stack, "attachment_list", monkeypatch)
    eventually(lambda: overtaken.creates == 2, "the first one makes another")
    eventually(lambda: len(overtaken.rows) == 1, "and takes it back")
    assert "Attachment.Disowned" in stack.history(overtaken.volume)
    overtaken.ends_well()


@pytest.mark.nightly
def test_whoever_was_stopped_before_the_answer_leaves_what_another_has_taken_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken = Overtaken(stack, "attachment_create", monkeypatch)
    log = overtaken.first.log
    eventually(lambda: "step_done_twice" in log.read_text(), "the first one hears of it")
    overtaken.ends_well()
    assert overtaken.creates == 1
    assert "Attachment.Disowned" not in stack.history(overtaken.volume)
