"""One HTTP request to the ledger: what is worth asking again, and what is an answer."""

from __future__ import annotations

import json
import random
import ssl
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import aiohttp

#: The largest answer read; a page of commands is far smaller.
ANSWER_MAX_BYTES = 4 * 1024 * 1024
#: Time for one request, beside the long poll's own wait.
REQUEST_S = 30.0


class LinkError(Exception):
    """The ledger could not be reached, or answered something that is to be retried."""

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """`wait_s` is how long the ledger may hold a poll with nothing to tell.

    A ledger that comes back, after however long, has all its agents again within
    `backoff_max_s`, and by the jitter not all of them at once.
    """

    url: str
    token: str
    host: str
    wait_s: float = 20.0
    inventory_interval_s: float = 30.0
    backoff_first_s: float = 0.2
    backoff_max_s: float = 5.0
    denied_retry_s: float = 30.0
    ca_file: str | None = None


class Backoff:
    """Exponential waits with full jitter between half and all of the bound."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def next_s(self) -> float:
        bound_s = self._next_s
        self._next_s = min(self._max_s, bound_s * 2)
        return bound_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class LedgerClient:
    """The ledger's endpoints for this host.  A context manager, for one event loop."""

    def __init__(self, settings: LinkSettings) -> None:
        self._base = f"{settings.url.rstrip('/')}/v1/hosts/{quote(settings.host, safe='')}"
        context = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else True
        self._session = aiohttp.ClientSession(
            headers={"X-Auth-Token": settings.token},
            connector=aiohttp.TCPConnector(ssl=context),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def closed(self) -> bool:
        return self._session.closed

    async def call(
        self, method: str, path: str, body: Any = None, timeout_s: float = REQUEST_S
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer that says something; LinkError to retry."""
        try:
            async with self._session.request(
                method,
                self._base + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                raw = await response.content.read(ANSWER_MAX_BYTES + 1)
                while len(raw) <= ANSWER_MAX_BYTES and (more := await response.content.readany()):
                    raw += more
                return response.status, _checked(response.status, raw)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LinkError(f"ledger not reached: {type(error).__name__} {error}") from error


def _checked(status: int, raw: bytes) -> dict[str, Any]:
    """The JSON object of an answer; LinkError for what is to be asked again."""
    if status in (401, 403):
        raise LinkError(
            f"the ledger refuses this host's token (HTTP {status}): check [ledger] token, and "
            "that the ledger knows it for this host name",
            denied=True,
        )
    if status >= 500 or status in (408, 429):  # noqa: PLR2004
        raise LinkError(f"the ledger answered HTTP {status}")
    if len(raw) > ANSWER_MAX_BYTES:
        raise LinkError(f"the ledger's answer has more than {ANSWER_MAX_BYTES} bytes")
    try:
        answer = json.loads(raw or b"{}")
    except ValueError as error:
        raise LinkError(f"the ledger answered HTTP {status} with no JSON") from error
    return answer if isinstance(answer, dict) else {}
