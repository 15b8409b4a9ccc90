"""Coalesces concurrent questions: those that come while one is under way are asked together.

As the log's writer does for appends: who asks alone waits for nobody, and under load
the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Batched(Generic[Q, A]):
    """`ask_all` answers a list of questions in their order; an answer may be an exception.

    What `ask_all` raises is the answer to all of its batch.  A batch has at most
    `weight_max`, by the sum of `weigh`; a heavier question goes alone.
    """

    def __init__(
        self,
        ask_all: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        weight_max: int,
        weigh: Callable[[Q], int] = lambda _: 1,
    ) -> None:
        self._ask_all = ask_all
        self._weight_max = weight_max
        self._weigh = weigh
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """The answer, in the next batch but one at the latest that has room."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="batched")
        return await answer

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._answer(batch)
        finally:
            self._task = None

    def _take(self) -> list[tuple[Q, asyncio.Future[A]]]:
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        weight = 0
        while self._waiting:
            weight += self._weigh(self._waiting[0][0])
            if batch and weight > self._weight_max:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _answer(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | Exception]
        try:
            answers = await self._ask_all([question for question, _ in batch])
        except Exception as error:  # noqa: BLE001 - everybody who asked is told
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue  # who asked is gone
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
