"""Checks that an answer is Cinder's own, and about the requested object.

Between Cinder and the ledger are load balancers, proxies and gateways with their own pages: a 404
for a lost backend, a 400 for a header, a 200 with a login form.  If such a 404 were trusted, an
attachment would count as deleted, and the next step would release its volume.  So a refusal counts
only in Cinder's form: a fault with the name of its status (cinder.api.openstack.wsgi.Fault); a 404
only if it names the requested object.  A success is JSON, or empty where Cinder's answer is empty.
Any other answer says nothing about the state in Cinder.

401 and 429 may come from a proxy: it asks for a login or limits the rate, and has not passed the
request on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError

#: By status; each other is a computeFault.
FAULT_NAMES = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    413: "overLimit",
    415: "badMediaType",
    501: "notImplemented",
    503: "serviceUnavailable",
}
_OTHERS = frozenset({401, 429})
#: Where Cinder answers without a body, beside those with one.
_SILENT = frozenset({HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT})
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check(status: int, text: str, body: object, *, path: str, sent: str) -> None:
    """Raise UNKNOWN `not_cinders` for an answer that is not Cinder's.

    `text` is the answer, `body` what it is as JSON; `path` and `sent` are the request.
    """
    if status >= HTTPStatus.BAD_REQUEST:
        message = _message_of(status, body)
        ours = status in _OTHERS or message is not None
        if status == HTTPStatus.NOT_FOUND and message is not None:
            named = any(id_ in message for id_ in _ID.findall(path + sent))
            ours = named or not _ID.search(path)
    elif status in _SILENT and not text:
        ours = True
    else:
        ours = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES and isinstance(body, Mapping)
    if not ours:
        raise PortError(
            ErrorKind.UNKNOWN,
            "not_cinders",
            f"An answer of HTTP {status} is not in Cinder's form: it did not come from Cinder. "
            "Check the proxy or load balancer in front of Cinder.",
        )


def _message_of(status: int, body: object) -> str | None:
    """What Cinder says in its error form, if it is that."""
    fault = body.get(FAULT_NAMES.get(status, "computeFault")) if isinstance(body, Mapping) else None
    if not isinstance(fault, Mapping) or fault.get("code") != status:
        return None
    message: Any = fault.get("message")
    return message if isinstance(message, str) else None
