"""Contacts are written together, never later than they were, and not lost by a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ledger.api import contacts as contacts_module
from ledger.api.contacts import Contacts
from tests.memory import Clock


class Table:
    """Where contacts are written; while `broken`, "b" is heard of meanwhile, and they are not."""

    def __init__(self) -> None:
        self.written: list[dict[str, float]] = []
        self.broken = False
        self.clock = Clock()
        self.contacts = Contacts(self._write, self.clock)

    async def _write(self, ages_s: Mapping[str, float]) -> None:
        if self.broken:
            self.clock.wait(60)
            self.contacts.heard("b")
            raise OSError("no database")
        self.written.append(dict(ages_s))


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


async def test_the_last_ones_are_written_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts_module, "WRITE_INTERVAL_S", 1_000.0)
    table = Table()
    running = asyncio.create_task(table.contacts.run())
    await asyncio.sleep(0)
    table.contacts.heard("a")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert table.written == [{"a": 0.0}]
