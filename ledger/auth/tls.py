"""The service's side of TLS: what it shows, whose certificates it takes, renewed while it runs.

Theory of operation.  asyncio asks one context for the TLS of each connection (`wrap_bio`), and that
one hands on to the newest that could be made whole: certificate, key, authorities and their lists.
So a connection has all of the old or all of the new, and files that cannot be used change nothing
but what /readyz, the log and a metric say.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from host_agent.shared.platform import tls
from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.settings import ConfigError, NotNowError
from host_agent.shared.platform.tls import Validity, Watched, moment
from ledger.auth.tokens import Certificate
from ledger.config import Listen

_log = structlog.get_logger(__name__)


class _Made(ssl.SSLContext):
    """One whole set of files.  `trusted`: a digest of the authorities and their lists."""

    trusted: bytes
    validity: Validity
    authorities: list[Validity]


class _LoggedHandshake(ssl.SSLObject):
    """A handshake whose failure is logged: asyncio says nothing, to either side."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or type(error).__name__
            _log.info("tls_refused", why=why)
            raise


class _Newest(ssl.SSLContext):
    """Gives each connection the context that is newest when it comes."""

    newest: _Made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


class ServiceTls(Collector):
    """The TLS of a service that listens with `certificate_file`."""

    def __init__(
        self, listen: Listen, clock: Callable[[], float], watched: Watched | None = None
    ) -> None:
        """Raises ConfigError if the files cannot be used.  `clock`: seconds since 1970."""
        self._listen, self.clock = listen, clock
        files = (listen.certificate_file, listen.key_file, listen.client_ca_file)
        self._watched = watched or Watched(*files)
        self._failed: str | None = None
        self.context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        self.context.newest = _made(listen)
        if why := self._validity.trouble(clock()):  # better served badly than not at all
            _log.error("certificate_not_valid", file=listen.certificate_file, why=why)

    @property
    def trusted(self) -> bytes:
        """A digest of whose certificates are taken now."""
        return self.context.newest.trusted

    @property
    def _validity(self) -> Validity:
        return self.context.newest.validity

    def look(self) -> bool:
        """Take files that have changed; whether that changed whose certificates are taken."""
        if not self._watched.changed():
            return False
        before = self.trusted
        try:
            made = self._better()
        except ConfigError as error:
            self._failed = str(error)
            _log.error("certificate_not_taken", why=self._failed, hint="the former one goes on")
            return False
        self._failed = None
        self.context.newest = made
        _log.info("certificate_taken", ends=moment(made.validity.ends))
        return made.trusted != before

    def _better(self) -> _Made:
        """What the files have now.  Raises ConfigError if what is in use is better."""
        made, now = _made(self._listen), self.clock()
        if (why := made.validity.trouble(now)) and not self._validity.trouble(now):
            raise ConfigError(f"{self._listen.certificate_file}: {why}")
        return made

    async def warning(self) -> str | None:
        """What is to be mended, for /readyz."""
        failed = self._failed and f"changed files are not taken, the former go on: {self._failed}"
        return "; ".join(filter(None, (failed, *self._ending()))) or None

    def _ending(self) -> Iterator[str | None]:
        """What should have been renewed by now, or may not be used."""
        yield self._of("certificate_file", self._validity)
        for each in self.context.newest.authorities:
            yield self._of("client_ca_file", each)

    def _of(self, name: str, validity: Validity) -> str | None:
        now = self.clock()
        if why := validity.trouble(now):
            return f"what [listen] {name} holds is not valid: {why}"
        if not validity.is_ending(now):
            return None
        days = (validity.ends.timestamp() - now) / 86400
        return (
            f"what [listen] {name} holds ends at {moment(validity.ends)}, in {days:.1f} days: "
            "put a new one there, which is taken without a restart"
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For /metrics."""
        left_s = self._validity.ends.timestamp() - self.clock()
        return gauges(left_s, ending=any(self._ending()), failed=bool(self._failed))


def gauges(left_s: float, *, ending: bool, failed: bool) -> Iterator[GaugeMetricFamily]:
    """What /metrics shows of the certificate, where there is one."""
    yield GaugeMetricFamily(
        "ledger_certificate_expiry_seconds",
        "Time until the certificate that the service shows ends; below 0: it has ended. With TLS",
        value=left_s,
    )
    yield GaugeMetricFamily(
        "ledger_certificate_load_failed",
        "1 if changed files of [listen] cannot be used and the former go on, else 0. With TLS",
        value=failed,
    )
    yield GaugeMetricFamily(
        "ledger_certificate_ending",
        "1 if a certificate of [listen], or an authority's, should have been renewed or may not be "
        "used, else 0; see /readyz. With TLS",
        value=ending,
    )


def certificate_of(transport: asyncio.BaseTransport) -> Certificate | None:
    """What the other end of a connection has shown, and TLS has taken."""
    shown = transport.get_extra_info("peercert")
    if not shown:
        return None
    return Certificate(shown, transport.get_extra_info("ssl_object").context.trusted)


def service_tls(listen: Listen, clock: Callable[[], float]) -> ServiceTls | None:
    """None: the settings name no certificate.  Raises ConfigError."""
    return ServiceTls(listen, clock) if listen.certificate_file else None


def _made(listen: Listen) -> _Made:
    """Raises ConfigError."""
    context = _Made(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.MINIMUM
    context.sslobject_class = _LoggedHandshake
    # Each connection shows its certificate: none is let in by what a former one has proven.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.trusted, context.authorities = b"", []
    if listen.client_ca_file:
        context.trusted = hashlib.sha256(_read(listen.client_ca_file)).digest()
        tls.trust(context, listen.client_ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL  # others show a token
        context.authorities = tls.validities(listen.client_ca_file)
    context.validity = tls.show(context, listen.certificate_file, listen.key_file)
    return context


def _read(file: str) -> bytes:
    try:
        with regular_file(file) as same:
            return same.read_bytes()
    except OSError as error:
        raise NotNowError(f"{file}: cannot be read: {error.strerror}") from None
