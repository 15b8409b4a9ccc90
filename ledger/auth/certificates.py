"""Agents that prove themselves by a certificate, where TLS has asked for one (`client_ca_file`).

A certificate speaks for one host: the one DNS name that it has (RFC 9525, 2: the subject's
common name means nothing).  A request that has a token is its bearer's, whatever the
connection has shown.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from aggregates.base import Actor
from host_agent.shared.contract import HOST_NAME
from ledger.auth.tokens import Authenticator, AuthError, Identity, RequestSender
from ledger.config import Role


class CertifiedAgents:
    """Agents with certificates, and whoever `tokens` knows."""

    def __init__(
        self,
        tokens: Authenticator,
        trusted: Callable[[], bytes],
        clock: Callable[[], float],
    ) -> None:
        """`trusted`: which authorities are, now; `clock`: seconds since 1970."""
        self._tokens, self._trusted, self._clock = tokens, trusted, clock

    async def authenticate(self, asked: RequestSender) -> Identity:
        """Raises AuthError."""
        certificate = asked.certificate
        if certificate is None or asked.headers.get("X-Auth-Token"):
            return await self._tokens.authenticate(asked)
        if certificate.trusted != self._trusted():
            raise AuthError("Since this connection was made other certificates are taken: connect.")
        # The connection may be older than the end of what it has shown.
        if ssl.cert_time_to_seconds(certificate.shown["notAfter"]) <= self._clock():
            raise AuthError("The certificate that this connection has shown has ended: renew it.")
        return _agent(_host(certificate.shown))


def _agent(host: str) -> Identity:
    return Identity(
        actor=Actor(name=f"agent on {host}"[:64], roles=(Role.AGENT.value,)),
        roles=frozenset({Role.AGENT}),
        host=host,
        counted_as=f"certificate {host}",
        certified=True,
    )


def _host(shown: Mapping[str, Any]) -> str:
    """Raises AuthError if the certificate is not one host's."""
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
    if len(names) != 1 or not re.fullmatch(HOST_NAME, names[0]):
        raise AuthError(
            "The certificate is no agent's: it has to have one DNS name in subjectAltName, "
            "the host's name, and no other."
        )
    return str(names[0])
