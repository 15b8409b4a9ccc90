"""Contacts are written together, never later than they were, and not lost by a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ledger.agents import contacts as contacts_module
from ledger.agents.contacts import Contacts
from tests.memory import Clock


class Table:
    """Where contacts are written; while `broken`, "b" is heard of meanwhile, and they are not."""

    def __init__(self) -> None:
        self.written: list[dict[str, float]] = []
        self.clocks: dict[str, float | None] = {}
        self.broken = False
        self.clock = Clock()
        self.sets = 0
        self.contacts = Contacts(self._write, self.clock, lambda: self.sets)

    async def _write(self, heard: Mapping[str, tuple[float, float | None]]) -> None:
        if self.broken:
            self.clock.wait(60)
            self.contacts.heard("b")
            raise OSError("no database")
        self.written.append({host: age_s for host, (age_s, _) in heard.items()})
        self.clocks |= {host: ahead_s for host, (_, ahead_s) in heard.items()}


async def test_what_was_heard_is_written_once_with_its_age() -> None:
    table = Table()
    table.contacts.heard("a")
    table.clock.wait(5)
    for _ in range(3):
        table.contacts.heard("b")
    await table.contacts.written()
    await table.contacts.written()
    assert table.written == [{"a": 5.0, "b": 0.0}]


async def test_what_could_not_be_written_is_written_later_unless_it_is_old_news() -> None:
    table = Table()
    table.broken = True
    table.contacts.heard("a")
    table.contacts.heard("b")
    with pytest.raises(OSError, match="no database"):
        await table.contacts.written()
    table.broken = False
    await table.contacts.written()
    assert table.written == [{"a": 60.0, "b": 0.0}]


async def test_all_are_written_again_with_their_ages_when_the_databases_clock_was_set() -> None:
    table = Table()
    table.contacts.heard("a", 14.0)
    await table.contacts.written()
    table.clock.wait(30)
    table.contacts.heard("b")
    table.sets = 1
    await table.contacts.written()
    await table.contacts.written()
    assert table.written == [{"a": 0.0}, {"a": 30.0, "b": 0.0}]
    assert table.clocks == {"a": 14.0, "b": None}


async def test_the_last_ones_are_written_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts_module, "WRITE_INTERVAL_S", 1_000.0)
    table = Table()
    running = asyncio.create_task(table.contacts.run())
    await asyncio.sleep(0)
    table.contacts.heard("a")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert table.written == [{"a": 0.0}]


async def test_who_needs_a_contact_written_waits_for_those_who_write_it() -> None:
    """Else a host could be read that has registered, and of which nobody has heard."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def write(_: Mapping[str, tuple[float, float | None]]) -> None:
        began.set()
        await may_end.wait()

    contacts = Contacts(write)
    contacts.heard("a")
    first = asyncio.create_task(contacts.written())
    await began.wait()
    second = asyncio.create_task(contacts.written())
    await asyncio.sleep(0)  # it begins
    assert not second.done()
    may_end.set()
    await asyncio.gather(first, second)
