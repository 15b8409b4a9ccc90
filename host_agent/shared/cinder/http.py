"""The transport of keystoneauth's calls of Cinder and Keystone: requests over platform.lines.

A transport adapter of requests.  Its calls are bounded in time and size (lines.py), counted, and
have tracing headers.  Errors are those of requests: ConnectTimeout if nothing was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from keystoneauth1 import session
from prometheus_client import Histogram
from requests.adapters import HTTPAdapter
from urllib3 import Timeout

from host_agent.shared.platform import tracing
from host_agent.shared.platform.lines import CONNECTIONS_MAX, NotConnectedError, ask, whole_answers
from host_agent.shared.platform.telemetry import NO_ANSWER, call_seconds, outcome_of

#: Called after each call: its URL, its outcome (`outcome_of`), and its duration in seconds.
Note = Callable[[str, str, float], None]


def session_of(
    neighbour: str,
    calls: Histogram | None,
    timeout_s: tuple[float, float],
    *,
    auth: Any = None,
    cacert: str | None = None,
    insecure: bool = False,
) -> session.Session:
    """A session with a neighbour; `timeout_s`: to connect, and to read the answer.

    `calls`: the histogram of the calls' durations, by neighbour and outcome.  Calls to the URL of
    `auth` count as Keystone's.
    """
    counted = calls or call_seconds()
    keystone = getattr(getattr(auth, "user_auth", auth), "auth_url", None)

    def note(url: str, outcome: str, took_s: float) -> None:
        whose = "keystone" if keystone and url.startswith(keystone) else neighbour
        counted.labels(whose, outcome).observe(took_s)

    verify = False if insecure else cacert or True
    begun = session.Session(auth=auth, verify=verify, session=transport(note))
    # requests takes a pair; the constructor of Session only a number.
    begun.timeout = timeout_s  # type: ignore[assignment]
    return begun


def transport(note: Note = lambda _url, _outcome, _took_s: None) -> requests.Session:
    """For keystoneauth's Session; thread-safe, as that is."""
    made = _Session()
    made.auth = lambda request: request  # no netrc: Keystone's token authenticates
    made.headers.clear()
    for scheme in ("https://", "http://"):
        made.mount(scheme, _Lines(note))
    return made


class _Session(requests.Session):
    """Reads the environment (proxies, certificates) once for each origin, not for each call."""

    def __init__(self) -> None:
        super().__init__()
        self._environment: dict[SplitResult, Any] = {}

    def merge_environment_settings(self, url: Any, *settings: Any) -> Any:
        origin = urlsplit(url)._replace(path="", query="")
        if origin not in self._environment:
            self._environment[origin] = super().merge_environment_settings(url, *settings)
        return self._environment[origin]


class _Lines(HTTPAdapter):
    def __init__(self, note: Note) -> None:
        super().__init__(pool_maxsize=CONNECTIONS_MAX)
        self._note = note

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send and read the whole answer, whatever its status.  Raises requests' errors."""
        del stream
        connect_s, read_s = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        pool = whole_answers(self.get_connection_with_tls_context(request, verify, proxies, cert))
        sent: Any = request  # what keystoneauth gives: a method, a URL, texts, no stream
        target = self.request_url(request, proxies)
        headers = {**sent.headers, **tracing.headers()}
        patience = Timeout(connect=connect_s, read=read_s)
        began, outcome = time.monotonic(), NO_ANSWER
        try:
            answer, raw = ask(pool, sent.method, target, headers, sent.body, timeout=patience)
            outcome = outcome_of(answer.status)
            tracing.answered(sent.method, answer.status, answer.headers)
        except NotConnectedError as error:
            raise requests.ConnectTimeout(error) from error
        except TimeoutError as error:
            raise requests.ReadTimeout(error) from error
        except OSError as error:
            raise requests.ConnectionError(error) from error
        finally:
            self._note(sent.url, outcome, time.monotonic() - began)
        response = self.build_response(request, answer)
        response.raw = BytesIO(raw)
        return response
