"""How keystoneauth's calls of Cinder and Keystone go out: requests' session over our lines.

An adapter of requests (the way that it offers for another transport), so an answer is bounded in
time and size as all others are (lines.py), is counted, and says whose request it serves.
Errors are requests': ConnectTimeout if nothing was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Timeout

from host_agent.shared.platform import tracing
from host_agent.shared.platform.lines import CONNECTIONS_MAX, NotConnectedError, ask, whole_answers
from host_agent.shared.platform.telemetry import NO_ANSWER, outcome_of

#: Is told of each call: its URL, its outcome (`outcome_of`), and how many seconds it took.
Note = Callable[[str, str, float], None]


def transport(note: Note = lambda _url, _outcome, _took_s: None) -> requests.Session:
    """For keystoneauth's Session; may be shared by threads, as that is."""
    session = _Session()
    session.auth = lambda request: request  # Keystone's token says who we are, and no netrc
    session.headers.clear()
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Lines(note))
    return session


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
