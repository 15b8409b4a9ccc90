"""What a line of the route table says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from ledger.api.call import Call

Model = type[BaseModel]

#: The header of requests that can be repeated safely.
IDEMPOTENT = ("Idempotency-Key",)


@dataclass(frozen=True, kw_only=True)
class Route:
    """`name` is the operationId of the OpenAPI document.

    `rules` of the policy (`ledger.auth.rules`): one of them has to permit the request before the
    handler is called; which of several it is, the handler says by `Call.under`.  Without a rule
    the route is open to everybody, with no token at all.
    `answers`: the model of the body by status, None for an empty one, or a media type.
    """

    name: str
    method: str
    path: str
    rules: tuple[str, ...]
    handler: Callable[[Call], Awaitable[web.StreamResponse]]
    answers: Mapping[int, Model | str | None]
    query: Model | None = None
    body: Model | None = None
    headers: tuple[str, ...] = field(default=())

    @property
    def nova(self) -> bool:
        return self.path == "/" or self.path.startswith("/v2.1")


def get(name: str, path: str, handler: Any, answer: Any, **more: Any) -> Route:
    """A route that reads."""
    return Route(name=name, method="GET", path=path, handler=handler, answers={200: answer}, **more)
