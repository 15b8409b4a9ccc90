"""What all changes of guests share: read the guest, request one change, read again.

A guest has up to two copies of its devices: the live one while it runs, and the
definition it is started from the next time, if it is persistent.

No return value of a hypervisor is trusted.  So rules are loops: look (`Rules.look`), request the
one missing change (`asking`), look again, until the guest is as requested or the attempts are used
up.  An error that only says that the guest changed between look and request is ignored: the next
look sees the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from host_agent.libvirt import disk_xml
from host_agent.libvirt.disk_xml import DiskSeen, DomainXml
from host_agent.libvirt.domain_xml import HostCapabilities
from host_agent.libvirt.hypervisor import Domain, Hypervisor, HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError

#: How often a guest may change between look and request before the call fails.
CHANGES_MAX = 5

_KINDS = {
    Trouble.UNREACHABLE: ErrorKind.RETRYABLE,
    Trouble.BUSY: ErrorKind.RETRYABLE,
    Trouble.SECRET_MISSING: ErrorKind.RETRYABLE,  # libvirtd was restarted; the retry sets it again
    Trouble.LOST: ErrorKind.UNKNOWN,
}
_CODES = {
    Trouble.DOMAIN_MISSING: "guest_missing",
    Trouble.NO_FREE_PORT: "no_free_pci_port",
    Trouble.TARGET_TAKEN: "device_name_taken",
    Trouble.UNREACHABLE: "hypervisor_unreachable",
    Trouble.LOST: "hypervisor_lost",
    Trouble.BUSY: "guest_busy",
    Trouble.SECRET_MISSING: "secret_missing",
}
#: The guest changed between look and request: look again.
MOVED = frozenset(
    {
        Trouble.DOMAIN_INACTIVE,
        Trouble.DOMAIN_ACTIVE,
        Trouble.DEVICE_MISSING,
        Trouble.DOMAIN_MISSING,
    }
)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a guest may take.

    To release a disk: Nova's 8 attempts of 20 s.  To shut down: Nova's 60 s, requested again every
    10 s, because a booting guest ignores it.  `end_timeout_s`: until an aborted job has ended.
    """

    detach_attempts: int = 8
    detach_timeout_s: float = 20.0
    shutdown_timeout_s: float = 60.0
    shutdown_again_s: float = 10.0
    end_timeout_s: float = 60.0
    poll_s: float = 0.5


@dataclass(frozen=True)
class Copies:
    """Both copies of a guest, as read at one moment."""

    domain: Domain
    live: DomainXml | None
    persistent: DomainXml | None

    def disk(self, serial: str) -> tuple[DiskSeen | None, DiskSeen | None]:
        live = self.live.disk_of(serial) if self.live else None
        persistent = self.persistent.disk_of(serial) if self.persistent else None
        return live, persistent

    def differences(self, serial: str) -> tuple[str, ...]:
        """The facts of this disk that differ between the running guest and its definition."""
        if self.live is None or self.persistent is None:  # it is off, or transient
            return ()
        return disk_xml.differences(*self.disk(serial))


class Rules:
    """The base of the rules: a hypervisor, its host, and timeouts."""

    def __init__(
        self, hypervisor: Hypervisor, patience: Patience, host: HostCapabilities | None = None
    ) -> None:
        self._hypervisor = hypervisor
        self._patience = patience
        self._xml_host = host or HostCapabilities()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back when the inventory may have changed."""
        self._hypervisor.subscribe(callback)

    def _look(self, server_id: str) -> Copies | None:
        with asking(frozenset()):
            domain = self._hypervisor.domain(server_id)
        return copies_of(domain) if domain else None

    def _look_here(self, server_id: str) -> Copies:
        """A guest that must be on this host."""
        copies = self._look(server_id)
        if copies is None:
            raise PortError(
                ErrorKind.FINAL, "guest_missing", f"Guest {server_id} is not on this host."
            )
        return copies

    def _wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it holds in time; checks at least once, and once more at the end."""
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() >= end:
                return False
            time.sleep(min(self._patience.poll_s, timeout_s))
        return True


def copies_of(domain: Domain) -> Copies:
    return Copies(
        domain,
        disk_xml.parse(domain.live_xml) if domain.live_xml else None,
        disk_xml.parse(domain.persistent_xml) if domain.persistent_xml else None,
    )


@contextmanager
def asking(forgiven: frozenset[Trouble] = MOVED) -> Iterator[None]:
    """Hypervisor errors become PortError; those in `forgiven` are ignored, and the caller looks
    again.
    """
    try:
        yield
    except HypervisorError as error:
        if error.trouble not in forgiven:
            raise port_error(error) from error


def port_error(
    error: HypervisorError, *, asked_before: bool = False, refused: str | None = None
) -> PortError:
    """The PortError; `refused`: its code if the hypervisor refused."""
    kind = _KINDS.get(error.trouble, ErrorKind.FINAL)
    if asked_before and kind is ErrorKind.RETRYABLE:
        kind = ErrorKind.UNKNOWN  # the guest may still carry out the earlier request
    code = _CODES.get(error.trouble, "hypervisor_error")
    if refused is not None and kind is ErrorKind.FINAL:
        code = refused
    return PortError(kind, code, error.message)


@contextmanager
def once_begun(begun: Callable[[], bool]) -> Iterator[None]:
    """RETRYABLE becomes UNKNOWN after the first request: something may have happened."""
    try:
        yield
    except PortError as error:
        if begun() and error.kind is ErrorKind.RETRYABLE:
            raise PortError(ErrorKind.UNKNOWN, error.code, error.message) from error
        raise


def not_running(server_id: str) -> PortError:
    return PortError(ErrorKind.FINAL, "guest_not_running", f"Guest {server_id} does not run.")


def unsettled(server_id: str) -> PortError:
    return PortError(
        ErrorKind.UNKNOWN,
        "guest_unsettled",
        f"Guest {server_id} did not reach the requested state: it kept changing, or the "
        "hypervisor reported success without doing it.",
    )
