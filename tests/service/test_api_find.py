"""GET /v1/find: what is meant by the beginning of an id, or by a name."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ledger.native.log.find import bounds
from tests.service.api_world import HOST, Api, guest


async def found(api: Api, text: str, who: str = "admin") -> list[tuple[str, str, str | None]]:
    answer = await api.get(f"/v1/find?text={text}", who)
    return [(each["kind"], each["id"], each["name"]) for each in answer["found"]]


async def test_the_beginning_of_an_id_finds_what_has_it(api: Api) -> None:
    server, volume = await api.attached()
    assert ("volume", volume, None) in await found(api, volume[:8])
    [attachment] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    [operation] = (await api.get("/v1/operations"))["operations"]
    ids = {attachment["attachment_id"], operation["operation_id"], server}
    for each in ids:
        assert each in {identity for _, identity, _ in await found(api, each[:13].upper())}
    assert attachment["server_name"] == operation["server_name"]
    assert ("operation", operation["operation_id"], "attach") in await found(
        api, operation["operation_id"]
    )


async def test_a_name_finds_its_server_and_a_host(api: Api) -> None:
    server = await api.server()
    [(_, _, name)] = await found(api, server[:8])
    assert await found(api, str(name)) == [("server", server, name)]
    assert await found(api, HOST) == [("host", HOST, None)]


async def test_nothing_of_another_project_is_found(api: Api) -> None:
    server, volume = await api.attached()
    [operation] = (await api.get("/v1/operations"))["operations"]
    for text in (server, volume, operation["operation_id"], HOST):
        assert await found(api, text) != []
        assert await found(api, text, who="stranger") == []


async def test_two_that_begin_alike_are_both_found(api: Api) -> None:
    beginning = str(uuid4())[:30]
    twins = [beginning + "000001", beginning + "000002"]
    await api.register(*(guest(server_id=each) for each in twins))
    await api.projected()
    assert {identity for _, identity, _ in await found(api, beginning)} == set(twins)


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("4444", "44440000-0000-0000-0000-000000000000"),
        ("44444444-5", "44444444-5000-0000-0000-000000000000"),
        ("ABCD", "abcd0000-0000-0000-0000-000000000000"),
        ("444", None),
        ("4444-4444", None),
        ("web-1", None),
        ("44444444-", "44444444-0000-0000-0000-000000000000"),
        ("4444%", None),
        ("4" * 36, None),
        ("----", None),
    ],
)
def test_an_id_begins_with_four_digits_at_least_and_dashes_in_their_places(
    text: str, low: str | None
) -> None:
    assert bounds(text)[0] == low
