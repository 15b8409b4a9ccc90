"""A requests.Session-compatible transport on urllib3, for keystoneauth's calls of Cinder.

It replaces `requests.Session.request`, which reads the environment and the cookies anew for each
call and would follow redirects.  Here the environment (proxies, certificates) is read once for
each origin, whose pool of connections requests makes, and urllib3 is asked directly (lines.py).
No netrc: Keystone's token says who we are.  Errors are requests': ConnectTimeout if nothing was
sent.

It gives 183 us of CPU for a call where requests takes 734 (row 12 of docs/benchmarks.md; measure
again with `make bench ARGS=shortcuts`); an attach and detach makes a dozen.  Delete this file
when keystoneauth takes another HTTP client, or when requests costs less than twice as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from requests import utils
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout

from host_agent.shared.platform import tracing
from host_agent.shared.platform.lines import CONNECTIONS_MAX, NotConnectedError, ask, whole_answers
from host_agent.shared.platform.telemetry import NO_ANSWER, outcome_of

#: Is told of each call: its URL, its outcome (shared.telemetry), and how many seconds it took.
Note = Callable[[str, str, float], None]


@dataclass(frozen=True)
class _Way:
    """To an origin.  A proxy of plain HTTP is asked for whole URLs, and told who we are."""

    pool: HTTPConnectionPool
    to_proxy: dict[str, str] | None


class Transport(requests.Session):
    """For keystoneauth's Session; may be shared by threads, as that is."""

    def __init__(self, note: Note = lambda _url, _outcome, _took_s: None) -> None:
        super().__init__()
        self._note = note
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS_MAX))
        self._ways: dict[tuple[str, str, Any, Any], _Way] = {}

    def request(  # type: ignore[override]  # keystoneauth names all it gives
        self,
        method: str,
        url: str,
        *,
        headers: Any = None,
        data: str | bytes | None = None,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        **_of_no_use_here: Any,
    ) -> requests.Response:
        """Send and read the whole answer, whatever its status.  Raises requests' errors."""
        connect_s, read_s = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        parts = urlsplit(utils.requote_uri(url))
        origin = (parts.scheme, parts.netloc, verify, cert)
        if origin not in self._ways:
            self._ways[origin] = self._way(method, url, parts, verify, cert)
        way = self._ways[origin]
        if way.to_proxy is None:
            parts = parts._replace(scheme="", netloc="")
        headers = {**(headers or {}), **(way.to_proxy or {}), **tracing.headers()}
        patience = Timeout(connect=connect_s, read=read_s)
        began, outcome = time.monotonic(), NO_ANSWER
        try:
            answer, raw = ask(way.pool, method, parts.geturl(), headers, data, timeout=patience)
            outcome = outcome_of(answer.status)
            tracing.answered(method, answer.status, answer.headers)
        except NotConnectedError as error:
            raise requests.ConnectTimeout(error) from error
        except TimeoutError as error:
            raise requests.ReadTimeout(error) from error
        except OSError as error:
            raise requests.ConnectionError(error) from error
        finally:
            self._note(url, outcome, time.monotonic() - began)
        return _response(method, url, answer, raw)

    def _way(self, method: str, url: str, parts: SplitResult, verify: Any, cert: Any) -> _Way:
        """With HTTPS the pool itself asks a proxy for a tunnel."""
        found = self.merge_environment_settings(url, {}, False, verify, cert)
        adapter = self.get_adapter(url)
        assert isinstance(adapter, HTTPAdapter), "requests mounts no other"
        message = requests.Request(method, url).prepare()
        proxies, cert = found["proxies"], found["cert"]
        pool = adapter.get_connection_with_tls_context(message, found["verify"], proxies, cert)
        whole_answers(pool)
        proxy = utils.select_proxy(url, proxies)
        if proxy is None or parts.scheme != "http" or proxy.lower().startswith("socks"):
            return _Way(pool, None)
        return _Way(pool, adapter.proxy_headers(proxy))


def _response(method: str, url: str, answer: BaseHTTPResponse, raw: bytes) -> requests.Response:
    response = requests.Response()
    response.status_code, response.url = answer.status, url
    response.headers = CaseInsensitiveDict(answer.headers)
    response.encoding = "utf-8"
    response.raw = BytesIO(raw)
    response.request = requests.PreparedRequest()
    response.request.method = method
    return response
