"""Errors of the API: what happened, in one form inside and two outside.

`explain` turns anything a handler raises into a `Failure`; `as_problem` shows it as RFC
9457 problem details (/v1), `as_nova` in the one-key form of Nova (/v2.1).  What nobody
foresaw becomes a 500 that names the request id and nothing of its content.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web
from eventsourcing import persistence
from pydantic import ValidationError

from aggregates.errors import ClaimedError, DomainError
from host_agent.shared.cinder.answers import FAULT_NAMES
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.wire import WireError
from ledger.auth.tokens import (
    AccessRulesError,
    AuthError,
    Identity,
    KeystoneAwayError,
    WebsiteError,
    WrongTokensError,
)
from ledger.http import redaction
from ledger.http.limits.reading import NoTurnError
from ledger.log.writer import UnknownOutcomeError
from projections.reads.database_trouble import is_away

RETRY_AFTER_S = "2"
#: What it says where it is too much: from and to, so that not all come again at once.
BUSY_AFTER_S = (2, 10)
#: Who is refused because it is too much.  A line of the log for each would be too much, too; they
#: are counted (`ledger_http_requests_total`).
BUSY = frozenset({"service_busy", "cinder_busy"})
#: Of a refused value, so many characters are repeated to the caller.
VALUE_CHARS_MAX = 100

#: Of a change, also where the database has gone only after the append.
_PERHAPS_STORED = "Check before you repeat it; with an Idempotency-Key, just repeat it."

_NOVA_NAMES = {**FAULT_NAMES, 429: "overLimit"}


class ApiError(Exception):
    """The API itself refuses or cannot; `code` is stable, the message is for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        operation: str | None = None,
        **headers: str,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.hint = hint
        self.operation = operation
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error as the caller gets to see it."""

    status: int
    code: str
    detail: str
    hint: str | None = None
    operation: str | None = None
    blocked_by: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def some_time() -> str:
    """A Retry-After where it is too much."""
    return str(random.randint(*BUSY_AFTER_S))  # noqa: S311 - jitter


def not_found(code: str, message: str) -> ApiError:
    return ApiError(404, code, message)


def explain(error: Exception, request_id: str, identity: Identity | None) -> Failure:
    """What to tell the caller about this error."""
    match error:
        case ApiError():
            return Failure(
                status=error.status,
                code=error.code,
                detail=str(error),
                hint=error.hint,
                operation=error.operation,
                headers=error.headers,
            )
        case DomainError():
            return Failure(
                status=error.status,
                code=error.code,
                detail=redaction.refusal(error, identity),
                operation=error.fields.get("operation_id"),
                blocked_by=_blocked_by(error),
            )
        case PortError():
            return _explain_cinder(error)
        case AuthError():
            return _explain_auth(error)
        case ValidationError():
            return Failure(status=400, code="invalid", detail=invalid_input(error))
        case WireError():
            return Failure(status=400, code="malformed", detail=f"{error}.")
        case web.HTTPException():
            return _explain_http(error)
    return _explain_inside(error, request_id)


def _blocked_by(error: DomainError) -> Mapping[str, Any] | None:
    """The operation in the way: what it is, where it stands, and what can be done about it."""
    if not isinstance(error, ClaimedError):
        return None
    names = ("operation_id", "flow", "state", "acts")
    return {name: error.fields[name] for name in names if name in error.fields}


def _explain_cinder(error: PortError) -> Failure:
    """Cinder's own refusals are the caller's to mend, and come in Cinder's words."""
    status = {"refused": 400, "not_found": 404, "forbidden": 403}.get(error.code, 500)
    if error.kind is not ErrorKind.FINAL:
        status = 503
    headers = {"Retry-After": RETRY_AFTER_S} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Failure(status=status, code=error.code, detail=error.message, headers=headers)


def _explain_auth(error: AuthError) -> Failure:
    text = str(error)
    match error:
        case WebsiteError():
            return Failure(status=403, code="website", detail=text)
        case AccessRulesError():
            return Failure(status=403, code="access_rules", detail=text)
        case KeystoneAwayError():  # never a 401: clients would drop good tokens
            wait = {"Retry-After": RETRY_AFTER_S}
            return Failure(status=503, code="keystone_unavailable", detail=text, headers=wait)
        case WrongTokensError():
            wait = {"Retry-After": str(error.retry_after_s)}
            return Failure(status=429, code="wrong_tokens", detail=text, headers=wait)
    challenge = {"WWW-Authenticate": error.challenge}  # RFC 9110 15.5.2
    return Failure(status=401, code="unauthorized", detail=text, headers=challenge)


def _explain_http(error: web.HTTPException) -> Failure:
    match error:
        case web.HTTPNotFound():
            return Failure(status=404, code="not_found", detail="The resource could not be found.")
        case web.HTTPMethodNotAllowed():
            allow = error.headers["Allow"]
            return Failure(
                status=405,
                code="method_not_allowed",
                detail=f"This resource allows only {allow}.",
                headers={"Allow": allow},
            )
        case web.HTTPRequestEntityTooLarge():
            detail = "The request is larger than the limit of this service."
            return Failure(status=413, code="too_large", detail=detail)
    return Failure(status=error.status, code="http_error", detail=error.reason)


def _explain_inside(error: Exception, request_id: str) -> Failure:
    headers = {"Retry-After": RETRY_AFTER_S}
    match error:
        case UnknownOutcomeError():
            return Failure(
                status=503,
                code="unknown_outcome",
                detail="The connection to the database was lost; the request may have been stored.",
                hint=_PERHAPS_STORED,
                headers=headers,
            )
        case NoTurnError():
            return Failure(
                status=503,
                code="service_busy",
                detail="More is asked of this process of the service than it can answer.",
                hint="Try again later; with an Idempotency-Key a request can be repeated safely.",
                headers={"Retry-After": some_time()},
            )
        case _ if isinstance(error, persistence.OperationalError) or is_away(error):
            return Failure(
                status=503,
                code="database_unavailable",
                detail="The database does not answer; a change may have been stored.",
                hint=_PERHAPS_STORED,
                headers=headers,
            )
    return Failure(
        status=500,
        code="internal",
        detail=f"Unexpected error; the service's log has the traceback under {request_id}.",
    )


def invalid_input(error: ValidationError) -> str:
    """The first thing wrong with a body or query, in Nova's words."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return unexpected(str(problem["loc"][-1]))
    if problem["type"] == "missing":
        return f"'{path}' is a required property"
    field, value = f" for field/attribute {path}" if path else "", _short(problem["input"])
    why = problem["msg"].removeprefix("Value error, ")  # pydantic's word for ours
    return f"Invalid input{field}. Value: {value}. {why}"


def unexpected(name: str) -> str:
    """What Nova says of a key it does not know."""
    return f"Additional properties are not allowed ('{_short(name)}' was unexpected)"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."


def as_nova(failure: Failure) -> dict[str, Any]:
    name = _NOVA_NAMES.get(failure.status, "computeFault")
    return {name: {"code": failure.status, "message": failure.detail}}


def as_problem(failure: Failure, request_id: str) -> dict[str, Any]:
    return {
        "type": f"urn:attachment-ledger:problem:{failure.code}",
        "title": HTTPStatus(failure.status).phrase,
        "status": failure.status,
        "detail": failure.detail,
        "code": failure.code,
        "request_id": request_id,
        "operation": failure.operation,
        "blocked_by": failure.blocked_by,
        "hint": failure.hint,
    }
