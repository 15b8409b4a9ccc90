"""Requests that are held: bounded, and let go when holding on is of no use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ledger.core.wakeups import Subscription
from ledger.http import components as services_module
from ledger.http.components import Holds
from ledger.http.problem import ApiError

APP: Any = None
SOON_S, NEVER_S = 10, 0.2


@dataclass
class Caller:
    """A connection, as far as it is looked at."""

    closing: bool = False

    def is_closing(self) -> bool:
        return self.closing


@dataclass
class Request:
    """`transport` is None once the connection is lost."""

    transport: Caller | None


def a_request() -> Any:
    return Request(Caller())


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "SWEEP_INTERVAL_S", 0.01)


@pytest.mark.parametrize("lost", [True, False])
async def test_who_is_gone_is_let_go_and_nobody_else(lost: bool) -> None:
    holds, stays, goes = Holds(10), a_request(), a_request()
    opened = holds.open(APP)
    await anext(opened)
    kept, woken = Subscription(), Subscription()
    with holds.waiting(stays, kept), holds.waiting(goes, woken):
        assert not await woken.wait(NEVER_S)
        if lost:
            goes.transport = None
        else:
            goes.transport.closing = True
        assert await woken.wait(SOON_S)
        assert not kept.event.is_set()
    assert await anext(opened, "closed") == "closed"


async def test_all_are_let_go_when_the_service_stops() -> None:
    holds, watch = Holds(10), Subscription()
    with holds.waiting(a_request(), watch):
        await holds.close(APP)
        assert await watch.wait(SOON_S)
    assert holds.closing.is_set()


async def test_there_are_only_so_many_places() -> None:
    holds = Holds(1)
    with holds.one():
        with pytest.raises(ApiError, match="limit"), holds.one():
            pass
        assert holds.count == 1
    assert holds.count == 0
