"""The host's credentials for the ledger: a token or a certificate, reloaded when they are renewed.

The files are checked when a request is sent, at most every few seconds.  An unusable file is only
logged, and the former credentials stay.  So the token can be replaced in its file while steps run.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from host_agent.shared.platform import tls
from host_agent.shared.platform.settings import ConfigError, secret_in
from host_agent.shared.platform.tls import Validity, Watched, moment

#: How often an expiring certificate is logged, in seconds.
SAY_AGAIN_S = 86_400.0

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Files:
    """Paths; "" for none."""

    token: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, eq=False)
class ShownCredentials:
    """The present credentials; `context` None: no TLS."""

    token: str = field(repr=False)
    context: ssl.SSLContext | None
    validity: Validity | None


class Expiry(NamedTuple):
    """`left_s`: negative after its end; `soon`: it should be renewed, or cannot be used."""

    left_s: float
    soon: bool


class Credentials:
    """The credentials of one host; thread-safe."""

    def __init__(
        self,
        url: str,
        token: str,
        files: Files,
        clock: Callable[[], float],
        watched: Watched | None = None,
    ) -> None:
        """`token`: if no file has one; `clock`: seconds since the epoch.  Raises ConfigError."""
        self._tls, self._token, self._files = url.startswith("https:"), token, files
        self._watched = watched or Watched(files.token, files.ca, files.certificate, files.key)
        self._clock = clock
        self._lock = threading.Lock()
        self._said_at: float | None = None
        self._shown = self._read()

    def now(self) -> ShownCredentials:
        """The same object until something is renewed."""
        with self._lock:
            if self._watched.changed():
                self._renew()
            self._warn()
            return self._shown

    def trouble(self) -> str | None:
        """Why the certificate is not valid now, by its dates; None: it is."""
        validity = self._shown.validity
        return None if validity is None else validity.trouble(self._clock())

    def ending(self) -> Expiry | None:
        """How long the certificate is valid; None: there is none."""
        validity, now = self._shown.validity, self._clock()
        if validity is None:
            return None
        left_s = validity.ends.timestamp() - now
        return Expiry(left_s, soon=validity.is_ending(now) or validity.trouble(now) is not None)

    def _renew(self) -> None:
        try:
            self._shown = self._read()
        except ConfigError as error:
            _LOG.error("credentials_not_taken", why=str(error), hint="the former ones go on")
        else:
            self._said_at = None
            _LOG.info("credentials_taken")

    def _read(self) -> ShownCredentials:
        """Raises ConfigError."""
        token = secret_in(Path(self._files.token)) if self._files.token else self._token
        if not (token.isascii() and token.isprintable()):
            where = self._files.token or "[ledger] token"
            raise ConfigError(f"{where}: holds no token: that is one line of ASCII characters")
        if not self._tls:
            return ShownCredentials(token, None, None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = tls.MINIMUM
        if self._files.ca:
            tls.trust(context, self._files.ca)  # no other authority
        else:
            context.load_default_certs()
        validity = None
        if self._files.certificate:
            validity = tls.show(context, self._files.certificate, self._files.key)
        return ShownCredentials(token, context, validity)

    def _warn(self) -> None:
        validity, now = self._shown.validity, self._clock()
        if validity is None or not validity.is_ending(now):
            return
        if self._said_at is None or now - self._said_at >= SAY_AGAIN_S:
            self._said_at = now
            _LOG.warning(
                "certificate_ends",
                file=self._files.certificate,
                ends=moment(validity.ends),
                hint="put a new one there: it is taken without a restart",
            )
