"""The kinds of Cinder's errors (contract.ErrorKind), and retries of calls.

The HTTP adapter and the simulation in the process share the mapping.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import requests
import structlog
from cinderclient import exceptions
from keystoneauth1 import exceptions as keystone_exceptions

from host_agent.shared.cinder.settings import RetryLimits
from host_agent.shared.contract.backoff import Backoff
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.lines import left_s
from host_agent.shared.platform.masking import clean_message

T = TypeVar("T")

_LOG = structlog.get_logger(__name__)

_KIND_AND_CODE = {
    400: (ErrorKind.FINAL, "refused"),
    401: (ErrorKind.RETRYABLE, "unauthorized"),
    403: (ErrorKind.FINAL, "forbidden"),
    404: (ErrorKind.FINAL, "not_found"),
    409: (ErrorKind.FINAL, "refused"),
    413: (ErrorKind.FINAL, "refused"),
    429: (ErrorKind.RETRYABLE, "rate_limited"),
    503: (ErrorKind.RETRYABLE, "cinder_unavailable"),
}


def error_of_status(status: int, message: object) -> PortError:
    """The error for an HTTP status of Cinder.

    Below 500 Cinder refused, and nothing happened; the message is Cinder's.  503 is from a proxy
    before Cinder: nothing happened either.  Another 5xx may come after the effect (a backend error,
    a lost RPC answer): UNKNOWN.
    """
    refused = (ErrorKind.FINAL, "refused")
    unknown = (ErrorKind.UNKNOWN, "cinder_error")
    default = refused if status < HTTPStatus.INTERNAL_SERVER_ERROR else unknown
    kind, code = _KIND_AND_CODE.get(status, default)
    return PortError(kind, code, clean_message(message) or f"Cinder answered HTTP {status}.")


def timeout_error() -> PortError:
    text = "Cinder did not answer in time; the call may have been carried out."
    return PortError(ErrorKind.UNKNOWN, "cinder_timeout", text)


def too_old() -> PortError:
    text = "This Cinder has no attachments: they need 3.44 (Cinder Queens). Use the old flow."
    return PortError(ErrorKind.FINAL, "cinder_too_old", text)


def _unavailable() -> PortError:
    text = "Cinder cannot be reached: no connection to its endpoint was made."
    return PortError(ErrorKind.RETRYABLE, "cinder_unavailable", text)


def _broken() -> PortError:
    text = "The connection to Cinder broke; the call may have been carried out."
    return PortError(ErrorKind.UNKNOWN, "cinder_error", text)


def _error_of_connection(error: BaseException) -> PortError:
    """Distinguish "never sent" from "sent, no answer", by the transport's error (the context)."""
    original = error.__context__
    if isinstance(original, requests.ConnectTimeout):
        return _unavailable()
    return timeout_error() if isinstance(original, requests.Timeout) else _broken()


def port_error(error: Exception) -> PortError:
    """The PortError for any exception of cinderclient, keystoneauth, or of reading an answer."""
    if isinstance(error, PortError):
        return error
    if isinstance(error, exceptions.ClientException):
        return error_of_status(error.code, error.message)
    if isinstance(error, exceptions.VersionNotFoundForAPIMethod):  # the client itself refuses
        return too_old()
    if isinstance(error, keystone_exceptions.ConnectionError):
        return _error_of_connection(error)
    if isinstance(error, keystone_exceptions.HttpError):  # from Keystone, before the call of Cinder
        return _keystone_error(error.http_status)
    if isinstance(error, keystone_exceptions.ClientException):
        text = f"Cinder's endpoint cannot be found or used ({type(error).__name__})."
        return PortError(ErrorKind.RETRYABLE, "cinder_unavailable", text)
    text = f"Cinder's answer cannot be read ({type(error).__name__})."
    return PortError(ErrorKind.UNKNOWN, "cinder_error", text)


def _keystone_error(status: int) -> PortError:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        text = "Keystone refuses our credentials; check the [cinder] auth options."
        return PortError(ErrorKind.RETRYABLE, "unauthorized", text)
    text = f"Keystone answered HTTP {status}; Cinder was not asked."
    return PortError(ErrorKind.RETRYABLE, "cinder_unavailable", text)


class Retry:
    """Retries a call within limits.  Clock, sleep and random source are passed in."""

    def __init__(
        self,
        limits: RetryLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def run(self, call: Callable[[], T], *, repeatable: bool) -> T:
        """The call's result, or the PortError of its last attempt.

        `repeatable`: the call is idempotent, so UNKNOWN is retried.  `unauthorized` is not retried,
        because the session has already requested a new token.
        """
        began, limits = self._clock(), self._limits
        backoff = Backoff(limits.delay_first_s, limits.delay_max_s, self._chance)
        for attempt in range(1, limits.attempts_max + 1):
            try:
                return call()
            except PortError as error:
                unknown = error.kind is ErrorKind.UNKNOWN and repeatable
                again = error.kind is ErrorKind.RETRYABLE and error.code != "unauthorized"
                delay = backoff.next_s()
                left = left_s()
                late = self._clock() - began + delay > limits.deadline_s
                late = late or (left is not None and delay >= left)
                if not (unknown or again) or late or attempt == limits.attempts_max:
                    raise
                _LOG.warning(
                    "cinder_call_retried", code=error.code, attempt=attempt, wait_s=round(delay, 1)
                )
            self._sleep(delay)
        raise AssertionError("attempts_max is at least 1")
