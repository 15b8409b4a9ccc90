"""One HTTP call over kept connections: what the agent talks to the ledger and Cinder with.

urllib3's pools, without what a browser needs: a call is sent once, and nothing is followed.
Its errors are told apart by what they say about the world: `NotConnectedError` - nothing was
sent - or any other OSError, after which the call may have been carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from ssl import CertificateError

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry, Timeout
from urllib3 import exceptions as errors

CONNECT_S = 5.0
#: Kept open of a pool, one for each thread that asks; beyond it they are made anew.
CONNECTIONS_MAX = 64
#: The largest answer read; a page of commands or of volumes is far smaller.
ANSWER_MAX_BYTES = 16 * 1024 * 1024

_ONCE = Retry(False, redirect=False)
_UNSENT = (
    errors.ConnectTimeoutError,  # of which a refusal is one, too
    errors.ProxyError,
    errors.ClosedPoolError,
)


class NotConnectedError(OSError):
    """There is no connection, so nothing was sent."""


def ask(
    pool: HTTPConnectionPool,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | str | None = None,
    *,
    timeout: Timeout,
) -> tuple[BaseHTTPResponse, bytes]:
    """The answer, whatever its status, and its body.  `target`: a path, or a URL for a proxy."""
    try:
        answer = pool.urlopen(
            method,
            target,
            body,
            headers,
            retries=_ONCE,
            redirect=False,
            assert_same_host=False,
            timeout=timeout,
            preload_content=False,
        )
        raw = answer.read(ANSWER_MAX_BYTES + 1)  # the whole of it gives the connection back
    except _UNSENT as error:
        raise NotConnectedError(f"{type(error).__name__} {error}") from error
    except errors.ReadTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except errors.HTTPError as error:
        if any(isinstance(cause, CertificateError) for cause in error.args):  # of a handshake
            raise NotConnectedError(f"{type(error).__name__} {error}") from error
        raise ConnectionError(f"{type(error).__name__} {error}") from error
    if len(raw) > ANSWER_MAX_BYTES:
        answer.close()
        raise ConnectionError(f"the answer has more than {ANSWER_MAX_BYTES} bytes")
    return answer, raw
