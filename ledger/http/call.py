"""One request, as a handler sees it: who asks, in which version, with what.

Everything read from the outside is bounded and typed here: ids are canonical UUIDs,
bodies and queries are models that know no other keys, texts of users can be stored
and shown (host_agent.shared.platform.text).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel

from aggregates.base import EventContext
from host_agent.shared.contract import HOST_NAME
from host_agent.shared.platform.text import is_showable, one_line, texts_in
from ledger.auth.policy import Policy, Target
from ledger.auth.tokens import Identity
from ledger.core.wakeups import ANY_EVENT
from ledger.http.body import Body, body_of, too_large
from ledger.http.components import HOLDS, Components, Holds, is_gone
from ledger.http.limits.bulkheads import BULKHEADS, Bulkheads
from ledger.http.limits.connections import sender_of
from ledger.http.microversions import Version
from ledger.http.problem import RETRY_AFTER_S, ApiError, not_found
from ledger.nova_beside.passing import BESIDE, Nova
from projections.reads.log import MomentToComeError, NotReplayedError
from projections.running.detached import DetachedError
from projections.running.runner import NotProjectingError

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

#: Of a request: read what was written at this position of the log, or later.  Of an answer: what
#: was written is at this position.
READ_AFTER = "X-Ledger-Position"
WRITTEN: web.RequestKey[int] = web.RequestKey("written", int)
_POSITION = re.compile(r"[0-9]{1,18}\Z", re.ASCII)  # as PostgreSQL's bigint has it

#: How long any request may be held.
HOLD_S_MAX = 60.0
#: How long an answer waits for the projections to have what it has just written.
PROJECTED_S_MAX = 10.0
#: A body of an agent up to which it is read at once, as any other.
SMALL_BYTES_MAX = 256 * 1024

#: Causes of what is asked for, and not reported by a host, which events name anyway.
_PEOPLES = frozenset({"api", "operator"})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_NUL = (b"\x00", b"\\u0000")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that passed the middlewares.  `version` is Nova's microversion.

    `rules`: those of the policy that it is under, one of which has to permit it.  `sent`: the body,
    where it is a form's and so no JSON (ledger.web).  `sender`: from where it came, as events keep
    it; None: it changes nothing, or a host's agent reports.
    """

    request: web.Request
    rules: tuple[str, ...]
    components: Components
    identity: Identity
    request_id: str
    version: Version
    global_request_id: str | None = None  # of the service that passed the request on
    sent: dict[str, Any] | None = None
    traceparent: str | None = None  # the caller's span, if it says one
    sender: dict[str, Any] | None = None
    persons: tuple[dict[str, Any], ...] = ()  # EventContext's

    @property
    def bulkheads(self) -> Bulkheads:
        return self.request.app[BULKHEADS]

    async def ask_cinder(self, ask: Callable[[], T]) -> T:
        """Do what may ask Cinder, in the room for it.  Raises ApiError 503, PortError, ..."""
        actor = self.identity.actor
        return await self.bulkheads.cinder.run(actor.project_id or actor.name, ask)

    @property
    def nova(self) -> Nova | None:
        """Whom to ask beside us, if there is one that may know this caller."""
        return self.request.get(BESIDE)

    @property
    def holds(self) -> Holds:
        return self.request.app[HOLDS]

    async def of_somebody(self) -> Call:
        """The same with who asks as events keep it.  Raises psycopg.Error."""
        asker = self.components.queries.asker
        actor, sender, new = await asker(self.identity.actor, sender_of(self.request))
        identity = replace(self.identity, actor=actor)
        return replace(self, identity=identity, sender=sender, persons=new)

    def context(self, cause: str = "api") -> EventContext:
        """The metadata of events that this request leads to."""
        return EventContext(
            actor=self.identity.actor,
            request_id=self.request_id,
            cause=cause,
            global_request_id=self.global_request_id,
            traceparent=self.traceparent,
            passes_locks=self.identity.everywhere,
            sender=self.sender if cause in _PEOPLES else None,
            persons=self.persons,
        )

    # --------------------------------------------------------------- who may do what

    def under(self, *rules: str) -> Call:
        """The request as one of these rules alone.  Raises ApiError 403."""
        refuse_unless(self.components.policy, self.identity, rules)
        return replace(self, rules=rules)

    def permits(self, rule: str, target: Target | None = None) -> bool:
        """Whether another rule permits the caller something more."""
        return self.components.policy.permits(self.identity, rule, target)

    @property
    def permitted(self) -> bool:
        """Whether the request would be let in now, too: rules change while it is held."""
        return any(map(self.permits, self.rules))

    @property
    def own_project(self) -> str:
        """The caller's; "", which is nobody's, for who is in none."""
        return self.identity.actor.project_id or ""

    def sees(self, project_id: str | None, user_id: str | None = None) -> bool:
        """Whether something of this project, and of this user, exists for the caller.

        Raises ApiError 403 if it does, and the request's rules do not permit it there.
        """
        if not self.identity.sees(project_id):
            return False
        target = Target(project_id, user_id)
        refuse_unless(self.components.policy, self.identity, self.rules, target)
        return True

    # ----------------------------------------------------------------- what was sent

    def id(self, name: str, message: str = "{} could not be found.") -> str:
        """An id of the path in canonical form; what is no UUID names nothing: 404."""
        text = self.request.match_info[name]
        known = canonical(text)
        if known is None:
            raise not_found("not_found", message.format(text[:100]))
        return known

    def host(self) -> str:
        """The host name of the path."""
        text = self.request.match_info["host"]
        if not re.fullmatch(HOST_NAME, text):
            raise not_found("host_not_found", "This is not a valid host name.")
        return text

    def query(self, model: type[M]) -> M:
        """The query, which may have each key once and no others than the model's."""
        given = self.request.query
        for key in given:
            if len(given.getall(key)) > 1:
                raise ApiError(400, "invalid", f"Query parameter '{key[:100]}' is given twice.")
        return model.model_validate(dict(given))

    async def json(self, model: type[M]) -> M:
        """The body as a model; no type is bent to fit."""
        return model.model_validate(await self.shown_object(), strict=True)

    async def shown_object(self) -> dict[str, Any]:
        """A JSON object whose texts can be stored and shown.  Raises ApiError 400."""
        return shown(await self.json_object())

    async def json_object(self, bytes_max: int | None = None) -> dict[str, Any]:
        """The body, which must be a JSON object of at most `bytes_max` bytes."""
        if self.sent is not None:
            return self.sent
        limit = bytes_max or self.components.settings.limits.request_body_bytes_max
        self._check_media_type()
        return _object(await body_of(self.request, limit))

    @asynccontextmanager
    async def inventory(
        self, host: str, bytes_max: int, made: Callable[[dict[str, Any]], T]
    ) -> AsyncIterator[T]:
        """The body of a host's agent, read by `made`; for as long as the block lasts.

        A large one is read in a thread, and only so many at once are in memory,
        one of each host: until the block is left.  Raises ApiError, and what `made` raises.
        """
        if (self.request.content_length or bytes_max) <= SMALL_BYTES_MAX:
            yield made(await self.json_object(SMALL_BYTES_MAX))
            return
        self._check_media_type()
        if (self.request.content_length or 0) > bytes_max:
            raise too_large(bytes_max)
        async with self.bulkheads.large_bodies.one(host):
            raw = await body_of(self.request, bytes_max)
            yield await self.bulkheads.agents(lambda: made(_object(raw)))

    def _check_media_type(self) -> None:
        if self.request.content_type != "application/json":
            raise ApiError(
                415,
                "media_type",
                f"Unsupported Content-Type {self.request.content_type[:100]}",
                hint="Send JSON, and say so: Content-Type: application/json.",
            )
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(
                415,
                "media_type",
                "Compressed bodies are not read.",
                hint="Send it as it is, without Content-Encoding.",
            )

    # ---------------------------------------------------------------------- waiting

    async def written(self, position: int) -> None:
        """Return when what was just written can be read, whichever process is asked next.

        The answer says the position: a standby, which comes later, can be asked for that.
        """
        self.request[WRITTEN] = position
        await projected(self.components, position)

    async def operate(self, act: Callable[..., int], *arguments: Any) -> int:
        """Do an operator's act, given these and the request's metadata; its last position, once
        that can be read.
        """
        position = await self.bulkheads.operators(act, *arguments, self.context("operator"))
        await self.written(position)
        return position

    async def read_after(self, position: str) -> None:
        """Return when what was written at a position can be read here.  ApiError 400, 503."""
        if not _POSITION.match(position):
            text = f"{READ_AFTER} is a position of the log, as an answer had it."
            raise ApiError(400, "invalid", text)
        look = partial(_is_projected, self, int(position))
        # Not the runner's wait: anybody may name a position, and none that never comes may stay.
        if not await self.hold(ANY_EVENT, look, PROJECTED_S_MAX):
            raise late()

    async def hold(
        self, key: str, look: Callable[[], Awaitable[T | None]], wait_s: float
    ) -> T | None:
        """`until` for callers who choose to wait: only so many may at once.

        Raises ApiError 503 if there are as many as there may be.
        """
        if wait_s <= 0:
            return await look()
        with self.holds.one():
            return await self.until(key, look, wait_s)

    async def until(
        self, key: str, look: Callable[[], Awaitable[T | None]], wait_s: float
    ) -> T | None:
        """What `look` finds, asked again at each wake-up of `key`, for at most `wait_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, HOLD_S_MAX)
        with self.components.wakeups.watch(key) as woken, self.holds.waiting(self.request, woken):
            while True:
                found = await look()
                left_s = deadline - loop.time()
                if found is not None or left_s <= 0 or self.ended:
                    return found
                await woken.wait(left_s)

    @property
    def ended(self) -> bool:
        """Whether holding on is of no use: the caller is gone, or the service stops."""
        return self.holds.closing.is_set() or is_gone(self.request)


def _object(raw: Body) -> dict[str, Any]:
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ApiError(400, "malformed", "Malformed request body") from None
    if not isinstance(data, dict) or any(nul in raw for nul in _NUL):
        raise ApiError(
            400,
            "malformed",
            "Malformed request body: it must be an object, "
            "and no text in it may hold a NUL character.",
        )
    return data


def shown(data: dict[str, Any]) -> dict[str, Any]:
    """The data, if its texts can be stored and shown.  Raises ApiError 400."""
    if bad := next((text for text in texts_in(data) if not is_showable(text)), None):
        raise ApiError(
            400,
            "unshowable",
            f"Invalid text: {one_line(bad)[:100]!r} has a control character or an invalid one.",
            hint="Use characters that XML 1.0 allows and a terminal can show.",
        )
    return data


def refuse_unless(
    policy: Policy, identity: Identity, rules: tuple[str, ...], target: Target | None = None
) -> None:
    """Raises ApiError 403 unless one of the rules permits it: what all requests have to pass."""
    if rules and not any(policy.permits(identity, rule, target) for rule in rules):
        text = f"Policy doesn't allow {rules[0]} to be performed."
        raise ApiError(403, "forbidden", text)


def canonical(text: str) -> str | None:
    """A UUID in canonical form; None for anything else, its other spellings included."""
    lowered = text.lower()
    return lowered if _UUID.match(lowered) else None


@contextmanager
def refuse_detached() -> Iterator[None]:
    """ApiError 410 where what is read is in the archive alone."""
    try:
        yield
    except DetachedError as error:
        raise ApiError(
            410,
            "detached",
            str(error),
            hint=f"Read them with 'attachment-ledger event list --archive DIRECTORY', and go on "
            f"after position {error.last_position}.",
        ) from None


async def refuse_to_come(call: Call, at: datetime, name: str = "at") -> None:
    """Return when an answer as of that moment will stay what it is, and can be read.

    ApiError 400 if the moment is still to come, 503 if the projections are late, or a standby is.
    """
    try:
        position = await call.components.queries.settled_at(at)
    except MomentToComeError:
        raise ApiError(
            400,
            "moment_to_come",
            f"'{name}' is in the future, by the database's clock.",
            hint=f"Leave '{name}' out for what is so now.",
        ) from None
    except NotReplayedError:
        raise ApiError(
            503,
            "not_replayed",
            "This standby has nothing that was recorded after 'at', so more may come of before.",
            hint="Ask for an earlier moment, or a process that is not read_only.",
            Retry_After=RETRY_AFTER_S,
        ) from None
    await projected(call.components, position)


async def refuse_unknowable(call: Call, at: datetime | None, known_at: datetime | None) -> None:
    """As `refuse_to_come`, of the later one; ApiError 400 for what nobody can have known."""
    if known_at is not None and (at is None or known_at < at):
        text = "'known_at' needs 'at', and must not be before it: the future cannot be known."
        raise ApiError(400, "invalid", text)
    if known_at is not None:
        await refuse_to_come(call, known_at, "known_at")
    elif at is not None:
        await refuse_to_come(call, at)


async def projected(components: Components, position: int) -> None:
    """Return when the projections have come to a position; 0: at once.  ApiError 503."""
    if position > 0:
        try:
            async with asyncio.timeout(PROJECTED_S_MAX):
                await asyncio.wrap_future(components.runner.projected(position))
        except (TimeoutError, NotProjectingError):
            raise late() from None


async def caught_up(call: Call) -> bool:
    """Whether the projections were behind the log, and are not any more: then look again.

    What they show is not durable: a new leader of the database may lack the last of it, and has all
    of the log.  ApiError 503 if they stay behind.
    """
    head = (await call.components.queries.head())["position"]
    look = partial(_is_projected, call, head)
    if await look():
        return False
    if not await call.until(ANY_EVENT, look, PROJECTED_S_MAX):
        raise late()
    return True


async def _is_projected(call: Call, position: int) -> bool | None:
    rows = await call.components.queries.tracking()
    return None if any(row["position"] < position for row in rows if not row["held"]) else True


def late() -> ApiError:
    """What was written, if anything was, is durable, and cannot be read yet; or what is decided
    cannot be read yet.
    """
    return ApiError(
        503,
        "projections_late",
        "The projections are late: the request may be stored, and cannot be read yet.",
        hint="See /readyz. With an Idempotency-Key the request can be repeated safely.",
        Retry_After=RETRY_AFTER_S,
    )


def answer(
    data: Any, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON answer; models say which of their fields are shown."""
    model = isinstance(data, BaseModel)
    body = data.model_dump_json(by_alias=True).encode() if model else orjson.dumps(data)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
