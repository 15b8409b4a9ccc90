"""Who reads from the database first, when more is asked than can be read.

A request asks several times on its way, and what the ledger does by itself, agents and probes ask
by the same connections.  If all waited by turns, each of them as long as it may, then with enough
requests nobody would come to its last question, nor a dispatcher to its first: everything would be
at work, and nothing be done.  So requests wait as in a room (ledger.rooms): when it is too much,
the last goes first, and who has had one answer is soon given the next.  And whatever is no request
of a user goes before them.
"""

from __future__ import annotations

from typing import Any

from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ledger.rooms import FullError, Places
from projections.reads.queries import POOL_WAIT_S, Queries


class NoTurnError(PoolTimeout):
    """More is asked of this process than it can read."""


class InTurn:
    """The connections of a pool, lent in this order; `first`: before those who are not."""

    def __init__(self, pool: AsyncConnectionPool[Any], places: Places, *, first: bool) -> None:
        self.pool, self._places, self._first = pool, places, first
        self.drain = pool.drain

    async def getconn(self) -> Any:
        """Raises NoTurnError or PoolTimeout if there is none in POOL_WAIT_S."""
        try:
            await self._places.enter("", POOL_WAIT_S, first=self._first)
        except FullError:
            raise NoTurnError(f"no turn to read in {POOL_WAIT_S:g} s") from None
        try:
            return await self.pool.getconn()
        except BaseException:
            self._places.leave("")
            raise

    async def putconn(self, connection: Any) -> None:
        try:
            await self.pool.putconn(connection)
        finally:
            self._places.leave("")


class UserQueries(Queries):
    """Queries for requests of users; `turns` is the queue of all readers, not only of these."""

    def __init__(self, pool: AsyncConnectionPool[Any], turns: Places) -> None:
        super().__init__(InTurn(pool, turns, first=False))
        self.turns = turns


def readers(pool: AsyncConnectionPool[Any]) -> tuple[UserQueries, Queries]:
    """For requests of users, and for all that goes before them."""
    turns = Places(pool.max_size, pool.max_size)
    return UserQueries(pool, turns), Queries(InTurn(pool, turns, first=True))
