"""What is known of Keystone's tokens, and for how long.

Nothing here holds a token: they are known by their SHA-256.  A token is asked about once, however
many requests show it at the moment, and then for `age_s` seconds not again: for so long a token
may be taken that was revoked meanwhile.  Its own end is kept to.  A wrong one is remembered for
WRONG_S, apart from the others, so that no number of wrong ones makes us forget the right ones.
That Keystone could not be asked is not remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ledger.auth.keystone_client import ValidatedToken

#: For how long a wrong token is known to be wrong.
WRONG_S = 10.0
#: How many wrong tokens are known.
WRONG_MAX = 10_000

K = TypeVar("K")
V = TypeVar("V")

#: Asks about a token for somebody at an address; the last says whether it may have expired.
Ask = Callable[[str, str, bool], Awaitable[ValidatedToken | None]]


@dataclass(frozen=True)
class _Right:
    proven: ValidatedToken
    until: float
    expires: float


class TokenCache:
    """Whose tokens are, asked for only if that is not known."""

    def __init__(
        self,
        ask: Ask,
        *,
        age_s: float,
        count_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._age_s = age_s
        self._count_max = count_max
        self._clock = clock
        self._right: OrderedDict[bytes, _Right] = OrderedDict()
        self._wrong: OrderedDict[tuple[bytes, bool], float] = OrderedDict()
        self._asking: dict[tuple[bytes, bool], asyncio.Task[ValidatedToken | None]] = {}

    async def whose(
        self, token: str, address: str, *, allow_expired: bool = False
    ) -> ValidatedToken | None:
        """Whose the token is; None if it is wrong.  Raises what `ask` raises."""
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        right = self._right.get(digest)
        if right and now < right.until and (allow_expired or now < right.expires):
            self._right.move_to_end(digest)
            return right.proven
        key = (digest, allow_expired)
        if now < self._wrong.get(key, now):
            self._wrong.move_to_end(key)
            return None
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._asked(key, token, address), name="keystone")
            asking.add_done_callback(_heard)
            self._asking[key] = asking
        return await asyncio.shield(asking)  # who goes away does not end it for the others

    async def _asked(
        self, key: tuple[bytes, bool], token: str, address: str
    ) -> ValidatedToken | None:
        digest, allow_expired = key
        try:
            proven = await self._ask(token, address, allow_expired)
            now = self._clock()
            if proven is None:
                _keep(self._wrong, key, now + WRONG_S, WRONG_MAX)
            else:
                right = _Right(proven, now + self._age_s, now + proven.left_s)
                _keep(self._right, digest, right, self._count_max)
            return proven
        finally:
            del self._asking[key]


def _keep(table: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
    """The newest, or last used, are kept."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > count_max:
        table.popitem(last=False)


def _heard(task: asyncio.Task[ValidatedToken | None]) -> None:
    """Nobody may be left to hear of an error."""
    if not task.cancelled():
        task.exception()
