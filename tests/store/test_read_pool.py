"""Reads go on when the database has dropped every connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from projections.database_connections import AsyncDbConnection
from projections.reads.queries import POOL_CONNECTIONS_MAX, Queries, read_pool


async def test_a_query_meets_lost_connections_and_is_answered(database_url: str) -> None:
    async with read_pool(database_url) as pool:
        queries = Queries(pool)
        await asyncio.gather(*(queries.head() for _ in range(4 * POOL_CONNECTIONS_MAX)))
        with psycopg.connect(database_url, autocommit=True) as other:
            ended = other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'attachment-ledger reads'"
            ).fetchall()
        assert ended, "there were connections to lose"
        heads = await asyncio.gather(*(queries.head() for _ in range(4 * POOL_CONNECTIONS_MAX)))
        assert all(head["position"] == 0 for head in heads)


async def test_no_read_is_compiled(database_url: str, db: psycopg.Connection[Any]) -> None:
    """Of 1.6 s for a list of 2,500 hosts LLVM took 0.7, each time.  Our own server has it off."""
    name = compose.Identifier(db.info.dbname)
    db.execute(compose.SQL("ALTER DATABASE {} SET jit = on").format(name))
    async with read_pool(database_url) as pool, pool.connection() as connection:
        assert await (await connection.execute("SHOW jit")).fetchone() == ("off",)


async def test_a_cancellation_that_the_pool_loses_ends_the_task_all_the_same(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with read_pool(database_url) as pool:
        getconn, putconn = pool.getconn, pool.putconn
        asked, waiting = asyncio.Event(), asyncio.Event()
        lent: list[AsyncDbConnection] = []

        async def losing_getconn() -> AsyncDbConnection:
            with contextlib.suppress(asyncio.CancelledError):  # as wait_for does (gh-86296)
                asked.set()
                await waiting.wait()
            lent.append(await getconn())
            return lent[-1]

        async def counting_putconn(connection: AsyncDbConnection) -> None:
            lent.remove(connection)
            await putconn(connection)

        queries = Queries(pool)
        with monkeypatch.context() as patched:
            patched.setattr(pool, "getconn", losing_getconn)
            patched.setattr(pool, "putconn", counting_putconn)
            reading = asyncio.create_task(queries.head())
            await asked.wait()
            reading.cancel()
            await asyncio.wait([reading])
        assert reading.cancelled()
        assert lent == [], "the connection was given back"
