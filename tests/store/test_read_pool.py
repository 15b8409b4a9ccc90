"""Reads go on when the database has dropped every connection."""

from __future__ import annotations

import asyncio

import psycopg

from projections.queries import POOL_CONNECTIONS_MAX, Queries, read_pool


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
