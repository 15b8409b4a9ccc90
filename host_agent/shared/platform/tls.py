"""TLS of both programs: certificates, their keys and authorities, read from files in PEM.

An error message names the file, and contains nothing of its content.  A context is made completely
or not at all, so an unusable file replaces nothing.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.settings import ConfigError, NotNowError, refuse_readable

MINIMUM = ssl.TLSVersion.TLSv1_2
#: A certificate should be renewed so long before its end ...
RENEW_BEFORE = timedelta(days=7)
#: ... or when less than this share of its validity is left, for short-lived ones.
RENEW_SHARE = 1 / 3
#: How often files are checked for changes, in seconds.
LOOK_S = 5.0

_PEM = re.compile(r"-----BEGIN (CERTIFICATE|X509 CRL)-----\s(.+?)-----END \1-----", re.DOTALL)
_CERTIFICATE, _CRL = "CERTIFICATE", "X509 CRL"
#: Tags of DER (X.690): a sequence, and the two forms of a time.
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0x17, 0x18
_LONG_FORM = 0x80


class Validity(NamedTuple):
    """The period of validity of a certificate or CRL."""

    begins: datetime
    ends: datetime

    def is_ending(self, now_s: float) -> bool:
        """Whether it should be renewed by now, in seconds since the epoch."""
        before = min(RENEW_BEFORE, (self.ends - self.begins) * RENEW_SHARE)
        return now_s >= (self.ends - before).timestamp()

    def trouble(self, now_s: float) -> str | None:
        """Why it is not valid now, in seconds since the epoch; None: it is."""
        if now_s >= self.ends.timestamp():
            return f"it ended at {moment(self.ends)}"
        return f"it begins at {moment(self.begins)}" if now_s < self.begins.timestamp() else None


class Watched:
    """Files that must be read again after a change.

    Checked at most every `every_s`.  A file that differs from the check before may be half written,
    so it counts as changed only when two checks agree.  `clock` is monotonic.
    """

    def __init__(
        self,
        *paths: str | Path,
        every_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it before the files are read for the first time."""
        self._paths = [Path(path) for path in paths if str(path)]
        self._every_s, self._clock = every_s, clock
        self._looked_at = clock()
        self._seen = self._in_use = self._states()

    def changed(self) -> bool:
        """Whether to read them again now: true once for each change."""
        now = self._clock()
        if now - self._looked_at < self._every_s:
            return False
        self._looked_at = now
        before, self._seen = self._seen, self._states()
        if self._seen == self._in_use or self._seen != before:
            return False
        self._in_use = self._seen
        return True

    def _states(self) -> list[tuple[int, ...] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def show(context: ssl.SSLContext, certificate_file: str, key_file: str) -> Validity:
    """Load this certificate into `context`; its validity.  Raises ConfigError.

    The file has the certificate, then its chain.
    """
    validity = min(validities(certificate_file), key=lambda each: each.ends)
    try:
        with _readable(certificate_file) as certificate, _readable(key_file) as key:
            refuse_readable(Path(key_file), key.stat())
            context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise NotNowError(f"{key_file}: is not the key of {certificate_file}") from None
        why = (error.reason or "no key in PEM").lower().replace("_", " ")
        raise NotNowError(f"{certificate_file} with {key_file}: cannot be used: {why}") from None
    except _EncryptedError:
        raise ConfigError(
            f"{key_file}: has a passphrase, which this program cannot ask for: store it without "
            "one (openssl pkey), readable only by this program"
        ) from None
    return validity


def trust(context: ssl.SSLContext, ca_file: str) -> None:
    """Have `context` trust these authorities, and check their CRLs.

    If the file has a CRL, each authority needs one.  Raises ConfigError.
    """
    kinds = {kind for kind, _ in _PEM.findall(_text(ca_file))}
    try:
        with _readable(ca_file) as same:
            context.load_verify_locations(cafile=same)
    except ssl.SSLError:
        kinds = set()
    if _CERTIFICATE not in kinds:
        raise NotNowError(f"{ca_file}: holds no certificate of an authority in PEM")
    if _CRL in kinds:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def validities(file: str) -> list[Validity]:
    """Of each certificate and CRL in a file.  Raises ConfigError if there is none."""
    text = _text(file)
    try:
        found = [_validity(kind, body) for kind, body in _PEM.findall(text)]
    except (ValueError, IndexError, StopIteration):
        raise NotNowError(f"{file}: holds what is no certificate") from None
    if not found:
        raise NotNowError(f"{file}: holds no certificate in PEM")
    return found


def moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def is_loopback(host: str) -> bool:
    """Whether a name or an address is the machine itself, without a name server."""
    if host == "localhost":  # RFC 6761, 6.3
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _EncryptedError(Exception):
    """A key with a passphrase, which OpenSSL would read from the terminal."""


def _refuse_passphrase() -> str:
    raise _EncryptedError


def _text(file: str) -> str:
    with _readable(file) as same:
        return same.read_text("ascii", errors="replace")


@contextmanager
def _readable(file: str) -> Iterator[Path]:
    try:
        with regular_file(file) as same:
            yield same
    except ssl.SSLError:  # an OSError, but about the content
        raise
    except OSError as error:
        raise NotNowError(f"{file}: cannot be read: {error.strerror}") from None


# --- DER -----------------------------------------------------------------------------------------


def _validity(kind: str, body: str) -> Validity:
    """RFC 5280, 4.1.2.5 and 5.1.2.4.  A CRL need not have nextUpdate."""
    der = ssl.PEM_cert_to_DER_cert(f"{ssl.PEM_HEADER}\n{body.strip()}\n{ssl.PEM_FOOTER}")
    signed = _parts(_parts(der)[0][1])[0][1]
    parts = _parts(signed)
    if kind == _CRL:
        times = _times(parts)
        return Validity(times[0], [*times, datetime.max.replace(tzinfo=UTC)][1])
    pairs = (_times(_parts(value)) for tag, value in parts if tag == _SEQUENCE)
    begins, ends = next(pair for pair in pairs if pair)
    return Validity(begins, ends)


def _times(parts: Sequence[tuple[int, bytes]]) -> list[datetime]:
    forms = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    return [
        datetime.strptime(value.decode("ascii"), forms[tag]).replace(tzinfo=UTC)
        for tag, value in parts
        if tag in forms
    ]


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each value in `der`."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & _LONG_FORM:
            octets = length & ~_LONG_FORM
            length, at = int.from_bytes(der[at : at + octets], "big"), at + octets
        found.append((tag, der[at : at + length]))
        at += length
    return found
