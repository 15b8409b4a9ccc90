"""`/readyz` says whether the process can do its work, and if not, why and what to do."""

from __future__ import annotations

from tests.service.api_world import Api, eventually
from tests.service.test_metrics import shown


async def test_a_projection_that_is_held_back_is_named_with_what_to_type(api: Api) -> None:
    await api.register()
    await api.projected()
    async with api.components.queries._pool.connection() as connection:
        await connection.execute("UPDATE tracking SET position = 0 WHERE projection = 'hosts'")
    await api.register(service_version=3)

    async def held() -> bool:
        return (await shown(api))["ledger_projection_held hosts"] == 1

    await eventually(held, "it stands where its rows have been")
    answer = await api.ask("GET", "/readyz", None)
    assert answer.status == 503
    said = (await answer.json())["checks"]["projections"]
    assert "hosts is held back by position 1" in said
    assert "RowBeyondMarkError" in said
    assert "attachment-ledger projection rebuild hosts" in said
    assert (await shown(api))["ledger_projection_held operations"] == 0
