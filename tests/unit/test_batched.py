"""Questions that come at once are asked together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledger.http.limits.batching import Batched


class Asked:
    """What is asked, batch by batch; each batch waits for `goes_on`."""

    def __init__(self, weight_max: int = 100) -> None:
        self.batches: list[list[int]] = []
        self.goes_on = asyncio.Event()
        self.batched: Batched[int, str] = Batched(self._answer, weight_max, abs)

    async def _answer(self, questions: Sequence[int]) -> Sequence[str | Exception]:
        self.batches.append(list(questions))
        await self.goes_on.wait()
        if 13 in questions:
            raise OSError("all of them")
        return [ValueError("alone") if number < 0 else str(number) for number in questions]

    def ask(self, *questions: int) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.batched.ask(question)) for question in questions]


async def begun(asked: Asked) -> None:
    async with asyncio.timeout(10):
        while not asked.batches:  # noqa: ASYNC110 - as it is asked
            await asyncio.sleep(0)


async def test_who_asks_alone_waits_for_nobody_and_the_others_go_together() -> None:
    asked = Asked()
    first = asked.ask(1)
    await begun(asked)
    later = asked.ask(2, 3, 4)
    await asyncio.sleep(0)
    assert asked.batches == [[1]]
    asked.goes_on.set()
    assert await asyncio.gather(*first, *later) == ["1", "2", "3", "4"]
    assert asked.batches == [[1], [2, 3, 4]]
    assert await asked.batched.ask(5) == "5"


async def test_a_batch_is_bounded_and_what_is_heavier_goes_alone() -> None:
    asked = Asked(weight_max=10)
    asked.goes_on.set()
    assert await asyncio.gather(*asked.ask(4, 6, 1, 50, 2, 3)) == ["4", "6", "1", "50", "2", "3"]
    assert asked.batches == [[4, 6], [1], [50], [2, 3]]


async def test_an_error_is_of_its_question_or_of_its_whole_batch() -> None:
    asked = Asked(weight_max=20)
    asked.goes_on.set()
    one, bad, *together = asked.ask(1, -2, 17, 13, 3)
    with pytest.raises(ValueError, match="alone"):
        await bad
    assert await one == "1"
    found = await asyncio.gather(*together, return_exceptions=True)
    assert asked.batches == [[1, -2, 17], [13, 3]]
    assert found[0] == "17"
    assert [type(each) for each in found[1:]] == [OSError, OSError]
    assert await asked.batched.ask(6) == "6"


async def test_who_is_gone_does_not_keep_the_others_from_their_answers() -> None:
    asked = Asked()
    gone, stays = asked.ask(1, 2)
    await begun(asked)
    gone.cancel()
    asked.goes_on.set()
    assert await asyncio.wait_for(stays, 10) == "2"
    assert gone.cancelled()
