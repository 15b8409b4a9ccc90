"""The processes behind URLs: one for each address of a name.

A paused process still accepts connections, so a library that tries a name's addresses in turn until
one connects stays with that process.  Here each address is tried separately, but under its name: as
`Host` (RFC 9110, 7.2), and as the name that its certificate must have (RFC 6066, 3).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit


class Endpoint(NamedTuple):
    """One process of a URL; `address` None: resolved at each connection."""

    url: str
    address: str | None = None

    @property
    def name(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def literal(self) -> str:
        """The address in the form for a URL, or the name."""
        host = self.address or self.name
        return f"[{host}]" if ":" in host else host

    @property
    def by_address(self) -> str:
        """The URL with the address in it."""
        parts = urlsplit(self.url)
        netloc = self.literal if parts.port is None else f"{self.literal}:{parts.port}"
        return parts._replace(netloc=netloc).geturl()


def is_http(url: str) -> bool:
    """Whether it is an HTTP URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def endpoints(urls: Iterable[str]) -> tuple[Endpoint, ...]:
    """All present addresses, at least one endpoint for each URL."""
    return tuple(dict.fromkeys(each for url in urls for each in _endpoints(url)))


def _endpoints(url: str) -> Iterator[Endpoint]:
    try:
        addresses = _addresses(urlsplit(url))
    except (OSError, ValueError):
        addresses = []
    if not addresses:  # the connection will fail with the reason
        yield Endpoint(url)
    for address in addresses:
        yield Endpoint(url, address)


def _addresses(parts: SplitResult) -> list[str]:
    if not parts.hostname:
        return []
    found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_kind, address in found]


class Ring:
    """Several endpoints, of which the first is used until `leave`; thread-safe.

    Names are resolved again at each `leave`, so that processes can come and go.  If a name cannot
    be resolved, its former addresses stay.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = tuple(urls)
        self._ring = endpoints(self._urls)

    @property
    def first(self) -> Endpoint:
        return self._ring[0]

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def several(self) -> bool:
        return len(self) > 1

    def leave(self, left: Endpoint) -> None:
        """Use another endpoint from now on; no effect if `left` is not the first any more."""
        first, *others = self._ring
        if left == first:
            now = endpoints(self._urls)
            not_found = {each.url for each in now if each.address is None}
            new = [each for each in now if each != left]
            self._ring = tuple(
                each
                for each in dict.fromkeys((*others, *new, left))
                if each in now or each.url in not_found
            )
