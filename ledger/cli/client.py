"""The ledger's HTTP API for the command line: one keystoneauth session, errors told apart.

keystoneauth is the one door for authentication: today the plugins for a static token
and for none, later any plugin it can load.  All calls block.  What goes wrong leaves
as `ClientError`: the ledger was not reached, or it refused (`ServiceError`, which carries
the problem document's fields).  Nothing is retried here; who may wait does that.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from keystoneauth1 import adapter, exceptions, noauth, session, token_endpoint

from host_agent.shared.platform.addresses import Endpoint, endpoints, is_http
from ledger.cli.errors import usage

TIMEOUT_S = 30.0
BEGIN_TIMEOUT_S = 150.0  # an attach: Cinder shows the volume, and reserves it within a minute
ALIVE_TIMEOUT_S = 3.0  # of one process of several
READY_TIMEOUT_S = 10.0  # its checks take 5 s at most
#: Nova's API as the commands speak it; our own version above it knows root volumes (S2).
COMPUTE = {"OpenStack-API-Version": "compute 2.105"}
STREAM_SILENCE_S = 90.0  # the feed sends a comment more often than this when nothing happens
PAGE_ITEMS = 100
PAGES_MAX = 1000
_FORM = "It has the form https://ledger:8790: --url, or the environment's LEDGER_URL."
_CACERT = "Name the authority that signed its certificate: --cacert FILE, or LEDGER_CACERT."


class ClientError(Exception):
    """The request has no good answer: what, why, and (if known) what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UnreachableError(ClientError):
    """No answer: nothing listens there, or the connection broke."""


class SlowError(UnreachableError):
    """It took the request and did not answer in time."""


class ServiceError(ClientError):
    """The service refused or failed; `code` is stable, the message is for people."""

    def __init__(self, status: int, code: str, message: str, hint: str | None) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class Client:
    """A ledger at `url` (its base, without /v1), asked as the owner of `token`.

    Without a token, which only a ledger without authentication takes, the history will
    name the account that this process runs as.
    """

    def __init__(self, url: str, token: str | None = None, cacert: str | None = None) -> None:
        """`url`: or several with commas, or a name with several addresses, of processes of one
        ledger: the first alive is asked.

        `cacert`: a file of authorities to believe.  Raises CliError if it is none, or no URL.
        """
        if cacert and not Path(cacert).is_file():
            raise usage(f"There is no file {cacert}.", _CACERT)
        urls = url.split(",")
        if wrong := [each for each in urls if not is_http(each)]:
            raise usage(f"{wrong[0]!r} is no URL of a ledger.", _FORM)
        endpoint = _first_alive(_endpoints(urls), cacert)
        self.url = endpoint.url.rstrip("/")
        auth = token_endpoint.Token(self.url, token) if token else noauth.NoAuth(self.url)
        self._adapter = _adapter(
            _session(endpoint, auth=auth, timeout=TIMEOUT_S, verify=cacert or True),
            self.url,
            {} if token else {"X-User-Id": _user()},
        )

    @classmethod
    def of(cls, logged_in: session.Session, url: str) -> Client:
        """The ledger at `url`, asked as whoever has logged in with this session."""
        made = cls.__new__(cls)
        made.url = url.rstrip("/")
        made._adapter = _adapter(logged_in, made.url, {})  # noqa: SLF001 - our own
        return made

    def check_alive(self) -> None:
        """Raises UnreachableError where nobody answers soon: no cell holds up the others."""
        with _translate_errors(self.url):
            self._adapter.get("/healthz", timeout=ALIVE_TIMEOUT_S, raise_exc=False)

    def get(self, path: str, *, timeout_s: float = TIMEOUT_S, **query: Any) -> Any:
        """The JSON answer; parameters that are None are left out."""
        return self.send("GET", path, query=query, timeout_s=timeout_s)

    def post(self, path: str, body: Any) -> Any:
        return self.send("POST", path, body=body)

    def nova(self, path: str, method: str = "GET", *, body: Any = None, **query: Any) -> Any:
        """The JSON answer of Nova's part of the API."""
        return self.send(method, f"/v2.1{path}", body=body, query=query, headers=COMPUTE)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """The JSON answer, None if it is empty.  Raises ClientError."""
        answer = self._answer(method, path, body, _given(query or {}), headers or {}, timeout_s)
        if not answer.content:
            return None
        return _json(answer.text, self.url)

    def begin(self, method: str, path: str, body: Any = None) -> str:
        """Ask for something that takes its time; the id of the operation that does it."""
        answer = self._answer(method, path, body, {}, COMPUTE, BEGIN_TIMEOUT_S)
        where = answer.headers.get("X-Attachment-Ledger-Operation")
        if where is None:
            raise ClientError(f"{self.url} names no operation: is this the ledger?")
        return str(where).rpartition("/")[2]

    def _answer(
        self,
        method: str,
        path: str,
        body: Any,
        query: dict[str, Any],
        headers: dict[str, str],
        timeout_s: float,
    ) -> Any:
        try:
            with _translate_errors(self.url):
                answer = self._adapter.request(
                    path,
                    method,
                    json=body,
                    params=query,
                    headers=headers,
                    timeout=timeout_s,
                    raise_exc=False,
                    rate_semaphore=nullcontext(),  # as for Cinder (shared.cinder.session)
                )
        except SlowError as error:
            error.hint = self._why_slow()
            raise
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise api_error(answer.status_code, answer.text)
        return answer

    def _why_slow(self) -> str | None:
        """What the service waits for; None if it does not say even that."""
        with suppress(ClientError), _translate_errors(self.url):
            answer = self._adapter.get("/readyz", timeout=READY_TIMEOUT_S, raise_exc=False)
            checks = _json(answer.text, self.url).get("checks") or {}
            waits = [f"{name} ({why})" for name, why in checks.items() if why]
            if waits:
                return f"The service is up and waits for {'; '.join(waits)}."
            return "The service is up; it may have done it. Look before you repeat it."
        return None

    def items(
        self, path: str, key: str, limit: int, *, after: int | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """At most `limit` rows of a list."""
        for page in self.pages(path, key, limit, after=after, **query):
            yield from page[key]

    def pages(
        self, path: str, key: str, limit: int, *, after: int | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """A list as it is handed out, with at most `limit` rows; `next` is the cursor."""
        cursor, left = after, limit
        for _ in range(PAGES_MAX):
            # A full page is the server's to size: its settings may have lowered the limit.
            count = left if left < PAGE_ITEMS else None
            page = self.get(path, limit=count, after=cursor, **query)
            rows = page[key] = page[key][:left]
            yield page
            left -= len(rows)
            cursor = page.get("next")
            if cursor is None or left <= 0:  # a page may be empty: of events of one topic
                return

    def nova_items(self, path: str, key: str, limit: int, **query: Any) -> Iterator[dict[str, Any]]:
        """At most `limit` rows of a list of Nova's, whose links lead from page to page."""
        marker, left = None, limit
        for _ in range(PAGES_MAX):
            page = self.nova(path, limit=min(left, PAGE_ITEMS), marker=marker, **query)
            yield from page[key][:left]
            left -= len(page[key])
            links = page.get(f"{key}_links") or page.get("links")  # of actions
            if not links or left <= 0:
                return
            [marker] = parse_qs(urlsplit(links[0]["href"]).query)["marker"]

    def stream(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """The data of server-sent events as they come; returns when the server closes."""
        with _translate_errors(self.url):
            answer = self._adapter.request(
                path,
                "GET",
                params=_given(query),
                headers={"Accept": "text/event-stream"},
                timeout=(TIMEOUT_S, STREAM_SILENCE_S),
                raise_exc=False,
                log=False,
                stream=True,
            )
            if answer.status_code >= HTTPStatus.BAD_REQUEST:
                raise api_error(answer.status_code, answer.text)
            with answer:
                yield from sse_data(_lines(answer))


def _endpoints(urls: list[str]) -> tuple[Endpoint, ...]:
    """A proxy finds the addresses of names itself."""
    from requests.utils import get_environ_proxies, select_proxy

    if any(select_proxy(url, get_environ_proxies(url)) for url in urls):
        return tuple(map(Endpoint, urls))
    return endpoints(urls)


def _first_alive(found: tuple[Endpoint, ...], cacert: str | None) -> Endpoint:
    """Of several, for one that is paused takes connections, too; the last if none answers."""
    *first, last = found
    for each in first:
        ask = _session(each, verify=cacert or True)
        with suppress(ClientError), _translate_errors(each.url):
            ask.get(f"{each.url.rstrip('/')}/healthz", timeout=ALIVE_TIMEOUT_S)
            return each
    return last


def _adapter(asked_by: session.Session, url: str, headers: dict[str, str]) -> adapter.Adapter:
    return adapter.Adapter(
        asked_by,
        additional_headers=headers,
        endpoint_override=url,
        user_agent="attachment-ledger",
    )


def _session(endpoint: Endpoint, **how: Any) -> session.Session:
    """Of keystoneauth; all that it asks goes to one address, by the URL's name."""
    made = session.Session(**how)
    if endpoint.address is not None:
        made.session.mount(endpoint.url, _at(endpoint))
    return made


def _at(endpoint: Endpoint) -> Any:
    class At(session.TCPKeepAliveAdapter):
        def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
            host, pool = super().build_connection_pool_key_attributes(*args, **kwargs)
            if host["scheme"] == "https":
                pool["server_hostname"] = endpoint.name
            return {**host, "host": endpoint.literal}, pool

        def add_headers(self, request: Any, **_kwargs: Any) -> None:
            request.headers["Host"] = endpoint.authority

    return At()


def _user() -> str:
    """Who asks, for the history of a ledger without authentication."""
    try:
        return re.sub(r"[^\w.@:-]", "_", getpass.getuser(), flags=re.ASCII)[:64] or "unknown"
    except (KeyError, OSError):  # a process without an account
        return "unknown"


def _given(query: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in query.items() if value is not None}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in named.items()
    }


def _lines(answer: Any) -> Iterator[str]:
    """Lines as soon as they are there: one byte at a time is what requests needs for it."""
    for line in answer.iter_lines(chunk_size=1):
        yield line.decode("utf-8", "replace")


def sse_data(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON data of each event of a text/event-stream (WHATWG HTML, 9.2.6)."""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield json.loads("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    import requests  # keystoneauth has loaded it already

    try:
        yield
    except (exceptions.SSLError, requests.exceptions.SSLError) as error:
        raise UnreachableError(_tls_trouble(url, str(error)), _CACERT) from error
    except (exceptions.ConnectFailure, requests.ConnectionError) as error:
        raise UnreachableError(f"The ledger at {url} cannot be reached: {_short(error)}") from error
    except (exceptions.ConnectTimeout, requests.Timeout) as error:
        if isinstance(error.__context__, requests.ReadTimeout):  # keystoneauth names both alike
            raise SlowError(f"The ledger at {url} has not answered yet.") from error
        raise UnreachableError(f"The ledger at {url} did not answer in time.") from error
    except (exceptions.ClientException, requests.RequestException, ValueError) as error:
        raise ClientError(f"The request to {url} failed: {error}") from error


def _tls_trouble(url: str, text: str) -> str:
    """OpenSSL's reason; the text around it repeats the address."""
    reason = re.search(r"certificate verify failed: ([^(]+)", text)
    if reason is None:
        return f"The ledger at {url} cannot be reached: does it speak TLS? {text}"
    return f"The certificate of the ledger at {url} is not taken: {reason[1].strip()}."


def _short(error: Exception) -> str:
    """The innermost reason; the outer ones repeat the address in three forms."""
    text = str(error)
    for reason in ("Connection refused", "Name or service not known", "No route to host"):
        if reason in text:
            return reason.lower()
    return text


def _json(text: str, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ClientError(f"{url} does not answer in JSON: is this the ledger?") from None


def api_error(status: int, text: str) -> ServiceError:
    """From a problem document (RFC 9457), Nova's error shape, or anything else."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return ServiceError(status, f"http_{status}", f"HTTP {status}: {text[:200].strip()}", None)
    if len(data) == 1 and isinstance(inner := next(iter(data.values())), dict):
        return ServiceError(status, f"http_{status}", str(inner.get("message", inner)), None)
    message = str(data.get("detail") or data.get("title") or f"HTTP {status}")
    return ServiceError(status, str(data.get("code", f"http_{status}")), message, data.get("hint"))
