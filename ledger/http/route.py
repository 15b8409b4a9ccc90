"""What a line of the route table says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ledger.http.call import Call
from ledger.http.parameters import Parameters, check
from ledger.http.problem import ApiError

#: A model of pydantic's, or a type of the agents' contract (`host_agent.shared.contract.wire`).
Model = type[Any]

#: Of whatever agents ask.
AGENT_RULE = "attachment-ledger:hosts:agent"
#: The header of requests that can be repeated safely.
IDEMPOTENT = ("Idempotency-Key",)


def is_nova(path: str) -> bool:
    """Whether what is at this path, or is not, speaks Nova's form."""
    return path == "/" or path.startswith("/v2")


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """`name` is the operationId of the OpenAPI document.

    `rules` of the policy (`ledger.auth.rules`): one of them has to permit the request before the
    handler is called; which of several it is, the handler says by `Call.under`.  Without a rule
    the route is open to everybody, with no token at all.
    `body`: what is sent; of several, keys of the first, and all of the second or none of them.
    `answers`: the model of the body by status, None for an empty one, or a media type.  `formats`:
    other media types of an answer with 200.  `query`: what /v1 may be asked with, if a reading call
    takes anything; `parameters`: what a reading call of Nova's form may be.  `of_both`: a Nova
    beside us answers, too, and judges them; what of it is ours, the handler checks.
    `gives_way`: it is refused at once while those before it wait too long for Cinder; what frees
    something waits with them.
    """

    name: str
    method: str
    path: str
    rules: tuple[str, ...]
    handler: Callable[[Call], Awaitable[web.StreamResponse]]
    answers: Mapping[int, Model | str | None]
    query: Model | None = None
    parameters: Parameters | None = None
    body: Model | tuple[Model, Model] | None = None
    headers: tuple[str, ...] = field(default=())
    formats: tuple[str, ...] = ()
    gives_way: bool = False
    of_both: bool = False

    async def answer(self, call: Call) -> web.StreamResponse:
        """What the handler says to a request whose query parameters are the route's.

        Raises ApiError, and whatever the handler raises.
        """
        if call.components.settings.read_only and not self._only_reads:
            raise ApiError(
                503,
                "read_only",
                "This process serves a standby of the ledger's database, and changes nothing.",
                hint="Ask a process that is not read_only: the endpoint of the catalog.",
            )
        if self.parameters is not None and not (self.of_both and call.nova is not None):
            check(call, self.parameters)
        elif self.query is None and self._only_reads and self.path.startswith("/v1"):
            check(call, ())
        return await self.handler(call)

    @property
    def _only_reads(self) -> bool:
        """Agents are waited for by those who can give them commands."""
        return self.method == "GET" and AGENT_RULE not in self.rules

    @property
    def changes(self) -> bool:
        """Whether somebody, and no agent of a host, changes something by it."""
        return self.method != "GET" and AGENT_RULE not in self.rules

    @property
    def nova(self) -> bool:
        return is_nova(self.path)


def also_at(route: Route) -> list[str]:
    """The other addresses of a route of Nova's: /v2, which knows no microversions, and both with
    the caller's project, as catalogs have it.
    """
    rest = route.path.removeprefix("/v2.1")
    if rest == route.path:
        return []
    if rest in {"", "/"}:
        return [f"/v2{rest}"]
    return [f"/v2{rest}", *(f"{root}/{{project_id}}{rest}" for root in ("/v2.1", "/v2"))]


def read(
    name: str, path: str, handler: Any, answer: Any, parameters: Parameters = (), **more: Any
) -> Route:
    """A route of Nova's form that reads, and takes these query parameters and no others."""
    return get(name, path, handler, answer, parameters=parameters, **more)


def get(name: str, path: str, handler: Any, answer: Any, **more: Any) -> Route:
    """A route that reads."""
    return Route(name=name, method="GET", path=path, handler=handler, answers={200: answer}, **more)
