"""Passes requests on to the Nova beside us, and its answers back, unchanged.

Theory of operation
-------------------
* Unchanged are method, path, query, body, status, and headers, doubles too.  `Host` is the
  caller's: Nova makes its links of it, so they lead here again.  What belongs to one connection
  alone is left out (RFC 9110, 7.6.1).  No credential of ours is added: Nova judges the caller's.
* Added is `Via` (7.6.3).  Who meets its own knows that it was told to pass on to itself.
* A body is read whole before Nova is asked, so that a slow sender holds no worker of Nova's; what
  came in chunks goes on with its length, for uWSGI takes no chunks.  An answer goes on as it comes.
* A request that Nova may have seen is never sent again, for it may have been obeyed.  So each has
  a connection of its own: one that is kept may end just when it is used again.
* GET and HEAD ask for nothing to be done (RFC 9110, 9.2.1).  Without a body they go by a connection
  that is kept, and once more by one of their own if it ends before the answer begins.
* A kept connection serves several callers.  What came on it between two requests is nobody's
  answer: such a connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import structlog
from aiohttp import hdrs, web
from aiohttp.connector import Connection
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from ledger.auth.tokens import StaticTokens
from ledger.config import Settings, hash_token
from ledger.http.body import Body, body_of
from ledger.http.microversions import Version
from ledger.http.problem import RETRY_AFTER_S, ApiError

#: Requests that are passed on at once, and those of one token.
PASSED_MAX = 200
PASSED_OF_TOKEN_MAX = 100
#: How long an answer of Nova may take, all of it: some wait for its compute hosts.
ANSWER_S = 120.0
#: How long a connection to Nova may take.
CONNECT_S = 5.0
#: How long an idle connection to Nova is kept: shorter than Apache in front of it does (5 s).
KEPT_S = 4.0
#: Of an answer that is read here, and not only passed on.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
#: How long Nova's newest microversion is known.
NEWEST_S = 10.0

_US = "attachment-ledger"
_OF_A_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        "expect",  # the body is here
    }
)
#: What aiohttp would add by itself.
_OURS = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)

#: Asked again, they do nothing twice.
_SAFE = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})

_BRIEF = aiohttp.ClientTimeout(total=CONNECT_S)

#: The headers of Nova's answer, of a request that was passed on.
PASSED: web.RequestKey[Mapping[str, str]] = web.RequestKey("passed", CIMultiDict)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Answer:
    """One of Nova's that was read whole."""

    status: int
    reason: str | None
    headers: CIMultiDict[str]
    body: bytes

    def response(self, request: web.Request) -> web.Response:
        """As it came."""
        request[PASSED] = self.headers
        return web.Response(
            body=self.body, status=self.status, reason=self.reason, headers=self.headers
        )

    def object(self) -> dict[str, Any]:
        """The JSON object that it is.  Raises ApiError 502."""
        try:
            data = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            data = None
        if not isinstance(data, dict):
            raise _broken("Nova's answer is no JSON object.")
        return data


class Nova:
    """Where `observe.pass_on_to` says.  `static`: the tokens that are ours, and tell Nova nothing.

    To be used by `beside`.
    """

    def __init__(
        self,
        settings: Settings,
        static: StaticTokens,
        own: aiohttp.ClientSession,
        kept: aiohttp.ClientSession,
    ) -> None:
        self._url = URL(str(settings.observe.pass_on_to))
        self._body_bytes_max = settings.limits.request_body_bytes_max
        self._static, self._own, self._kept = static, own, kept
        self._under_way = Counter[str]()
        self._newest: Version | None = None
        self._newest_until = 0.0

    def takes(self, request: web.Request) -> bool:
        """Whether Nova may know who sends this.  Who sends no token is nobody there as here."""
        token = request.headers.get("X-Auth-Token", "")
        return bool(token) and self._static.identity(token) is None

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Nova's answer, as it comes.  Raises ApiError 408, 413, 502, 503, 504, 508."""
        async with self._asked(request) as answer:
            headers = request[PASSED] = _passed(answer.headers)
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=headers
            )
            await response.prepare(request)
            try:
                async with asyncio.timeout(ANSWER_S):  # a slow reader holds its place no longer
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
            except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
                # Its beginning is said, so all that is left is not to say its end.
                _log.warning("nova_broke_off", path=request.path, why=str(error) or "no more came")
                if request.transport is not None:
                    request.transport.abort()
            return response

    async def whole(self, request: web.Request, body: Body | None = None) -> Answer:
        """Nova's answer to be read here; `body`: in place of the request's.

        Raises ApiError 408, 413, 502, 503, 504, 508.
        """
        async with self._asked(request, body, without=(hdrs.ACCEPT_ENCODING,)) as answer:
            raw = bytearray()
            async for chunk in answer.content.iter_any():
                raw += chunk
                if len(raw) > ANSWER_BYTES_MAX:
                    raise _broken(f"Nova's answer is larger than {ANSWER_BYTES_MAX} bytes.")
            headers = _passed(answer.headers, (hdrs.CONTENT_LENGTH,))
            return Answer(answer.status, answer.reason, headers, bytes(raw))

    async def newest(self) -> Version | None:
        """Its newest microversion, as it last said; None: it never did."""
        if time.monotonic() >= self._newest_until:
            self._newest_until = time.monotonic() + NEWEST_S
            try:
                async with self._own.get(self._url / "v2.1/", timeout=_BRIEF) as answer:
                    said = (await answer.json())["version"]["version"]
                major, _, minor = said.partition(".")
                self._newest = int(major), int(minor)
            except (TimeoutError, aiohttp.ClientError, LookupError, TypeError, ValueError) as error:
                _log.warning("nova_tells_no_version", why=repr(error))
        return self._newest

    @asynccontextmanager
    async def _asked(
        self, request: web.Request, body: Body | None = None, without: tuple[str, ...] = ()
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _passed(request.headers, (hdrs.CONTENT_LENGTH, *without))
        if any(_US in each for each in headers.getall(hdrs.VIA, ())):
            text = "observe.pass_on_to leads back to this service: set it to Nova's own address."
            raise ApiError(508, "leads_back", text)
        headers.add(hdrs.VIA, f"1.1 {_US}")
        if body is None and request.body_exists:
            body = await body_of(request, self._body_bytes_max)
        url = URL.build(
            scheme=self._url.scheme,
            authority=self._url.raw_authority,
            path=request.rel_url.raw_path,
            query_string=request.rel_url.raw_query_string,
            encoded=True,
        )
        with self._place(request), _explained():
            async with await self._sent(request.method, url, headers, body) as answer:
                yield answer

    async def _sent(
        self, method: str, url: URL, headers: CIMultiDict[str], body: Body | None
    ) -> aiohttp.ClientResponse:
        """The answer as it begins.  What may be sent twice has one deadline for both."""
        until = time.monotonic() + ANSWER_S
        if method in _SAFE and body is None:
            try:
                return await self._kept.request(method, url, headers=headers, allow_redirects=False)
            except aiohttp.ClientConnectorError:
                raise  # another connection would not be made, either
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                _log.info("asked_again", method=method, path=url.path, why=repr(error))
        limits = aiohttp.ClientTimeout(total=until - time.monotonic(), connect=CONNECT_S)
        return await self._own.request(
            method, url, headers=headers, data=body, allow_redirects=False, timeout=limits
        )

    @contextmanager
    def _place(self, request: web.Request) -> Iterator[None]:
        """Raises ApiError 503 if there is none."""
        token = hash_token(request.headers.get("X-Auth-Token", ""))
        of_token = self._under_way[token]
        if of_token >= PASSED_OF_TOKEN_MAX or self._under_way.total() >= PASSED_MAX:
            text = (
                f"This process waits for {self._under_way.total()} answers of Nova, {of_token} of "
                "them to this token, and asks no more at once. Nova was not asked; try again."
            )
            raise ApiError(503, "nova_busy", text, Retry_After=RETRY_AFTER_S)
        self._under_way[token] += 1
        try:
            yield
        finally:
            self._under_way[token] -= 1
            if not self._under_way[token]:
                del self._under_way[token]


@asynccontextmanager
async def beside(settings: Settings, static: StaticTokens) -> AsyncIterator[Nova | None]:
    """The Nova of the settings, for as long as the block lasts; None: there is none.

    A standby is behind, also on whose a server is: who reads it passes nothing on.
    """
    observe = settings.observe
    if observe.pass_on_to is None or settings.read_only:
        yield None
        return
    trust: ssl.SSLContext | bool = True
    if observe.insecure or observe.cacert:
        trust = not observe.insecure and ssl.create_default_context(cafile=observe.cacert)
    own = aiohttp.TCPConnector(limit=0, force_close=True, ssl=trust)
    kept = _Kept(limit=0, keepalive_timeout=KEPT_S, ssl=trust)
    async with _session(own) as one, _session(kept) as other:
        yield Nova(settings, static, one, other)


class _Kept(aiohttp.TCPConnector):
    """Connections that are used again, unless something came on them that nobody had asked for."""

    async def connect(self, *args: Any, **options: Any) -> Connection:
        """One on which nothing waits.  Raises what aiohttp does."""
        connection = await super().connect(*args, **options)
        if connection.protocol is None or not connection.protocol.should_close:
            return connection
        connection.close()
        raise aiohttp.ServerDisconnectedError("It was told what nobody had asked.")


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        auto_decompress=False,
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_OURS,
        timeout=aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S),
    )
    # Else it repeats PUT and DELETE, too; aiohttp has no public word for that.
    session._retry_connection = False  # noqa: SLF001
    return session


#: Who may be asked beside us for a request; the console's have none, and show our own view.
BESIDE: web.RequestKey[Nova] = web.RequestKey("beside", Nova)


def settle(headers: CIMultiDict[str], passed: Mapping[str, str]) -> None:
    """Take out of an answer's headers what aiohttp adds to them."""
    for name in (hdrs.CONTENT_TYPE, hdrs.SERVER):
        if name not in passed:
            headers.pop(name, None)


def _passed(headers: MultiMapping[str], without: tuple[str, ...] = ()) -> CIMultiDict[str]:
    """What of one side's headers the other is to have."""
    connection = ",".join(headers.getall(hdrs.CONNECTION, ()))
    named = {each.strip().lower() for each in connection.split(",")}
    left_out = _OF_A_CONNECTION | named | {name.lower() for name in without}
    return CIMultiDict(each for each in headers.items() if each[0].lower() not in left_out)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises ApiError: 503, Nova has surely not got the request; 502 and 504, it may have."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        _log.warning("nova_away", why=str(error))  # it names addresses, which are not the caller's
        text = "Nova is away, and was not asked. Try again."
        raise ApiError(503, "nova_away", text, Retry_After=RETRY_AFTER_S) from None
    except TimeoutError:
        text = f"Nova has not answered in {ANSWER_S:g} s; it may do what was asked all the same."
        raise ApiError(504, "nova_slow", text) from None
    except aiohttp.ClientError as error:
        _log.warning("nova_broke_off", why=str(error))
        raise _broken("Nova broke off; it may have done what was asked.") from None


def _broken(text: str) -> ApiError:
    return ApiError(502, "nova_broken", text)
