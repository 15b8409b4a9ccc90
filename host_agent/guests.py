"""The Guests port over a hypervisor: plugging and unplugging disks, and the inventory.

Theory of operation.  A guest has up to two copies of its devices: the live one while
it runs, and the definition it is started from the next time, if it is persistent.
Both must agree after every outcome.

Nothing a hypervisor returns is believed.  libvirt's detach returns success after 5 s
although the guest has not let go of the disk; a detach during the guest's boot is
lost; the guest may be started, stopped or gone between a look and an act.  So
both calls are loops: read the XML, do the one thing that is missing, read again,
until the copies are as asked or the attempts are used up.

Unplug takes the live disk first.  A guest that refuses so leaves the definition
untouched, and should it lack the disk (a former attempt, or somebody else), it gets
it back.  A refused removal cannot be called back: should the guest let go later, the
drift report shows it, and a new unplug finds the disk missing, which is success.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from host_agent import disk_xml
from host_agent.contract import ErrorKind, Guest, PowerState
from host_agent.disk_xml import DiskSeen, DomainXml
from host_agent.hypervisor import Domain, Hypervisor, HypervisorError, Trouble
from host_agent.ports import Disk, DiskState, PortError

#: How often the world may change between look and act before we give up.
CHANGES_MAX = 5

_LOG = logging.getLogger(__name__)
_KINDS = {
    Trouble.UNREACHABLE: ErrorKind.RETRYABLE,
    Trouble.BUSY: ErrorKind.RETRYABLE,
    Trouble.LOST: ErrorKind.UNKNOWN,
}
_CODES = {
    Trouble.DOMAIN_MISSING: "guest_missing",
    Trouble.NO_FREE_PORT: "no_free_pci_port",
    Trouble.TARGET_TAKEN: "device_name_taken",
    Trouble.UNREACHABLE: "hypervisor_unreachable",
    Trouble.LOST: "hypervisor_lost",
    Trouble.BUSY: "guest_busy",
}
#: The world moved between our look and our act: look again.
_MOVED = frozenset({Trouble.DOMAIN_INACTIVE, Trouble.DEVICE_MISSING, Trouble.DOMAIN_MISSING})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a guest may take to let go of a disk (nova: 8 attempts of 20 s)."""

    detach_attempts: int = 8
    detach_timeout_s: float = 20.0


@dataclass(frozen=True)
class _Copies:
    """Both copies of a guest, as read at one moment."""

    domain: Domain
    live: DomainXml | None
    persistent: DomainXml | None

    def disk(self, volume_id: str) -> tuple[DiskSeen | None, DiskSeen | None]:
        live = self.live.disk_of(volume_id) if self.live else None
        persistent = self.persistent.disk_of(volume_id) if self.persistent else None
        return live, persistent


class HypervisorGuests:
    """Guests by rules of our own, over whatever does the work."""

    def __init__(self, hypervisor: Hypervisor, patience: Patience) -> None:
        self._hypervisor = hypervisor
        self._patience = patience

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back when the inventory may have changed."""
        self._hypervisor.subscribe(callback)

    def inventory(self) -> list[Guest]:
        """Every domain of this hypervisor, in any state, persistent or transient."""
        try:
            return [_guest(_copies(domain)) for domain in self._hypervisor.domains()]
        except HypervisorError as error:
            raise _port_error(error) from error

    def users(self, volume_id: str) -> list[str]:
        try:
            copies = [_copies(domain) for domain in self._hypervisor.domains()]
        except HypervisorError as error:
            raise _port_error(error) from error
        return sorted(c.domain.server_id for c in copies if any(c.disk(volume_id)))

    def disk(self, server_id: str, volume_id: str) -> DiskState:
        copies = self._read(server_id)
        return _state(copies, volume_id) if copies else _NOWHERE

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        for _ in range(CHANGES_MAX):
            copies = self._read(server_id)
            if copies is None:
                raise PortError(
                    ErrorKind.FINAL, "guest_missing", f"Guest {server_id} is not on this host."
                )
            live, persistent = copies.disk(disk.volume_id)
            lacking = _Lacking(
                live=copies.live is not None and live is None,
                persistent=copies.persistent is not None and persistent is None,
            )
            if not (lacking.live or lacking.persistent):
                return _state(copies, disk.volume_id)
            self._add(server_id, _following(disk, live or persistent), copies, lacking)
        raise _unsettled(server_id)

    def unplug(self, server_id: str, volume_id: str) -> DiskState:
        attempts = 0
        for _ in range(CHANGES_MAX + self._patience.detach_attempts):
            copies = self._read(server_id)
            if copies is None:
                return _NOWHERE
            live, persistent = copies.disk(volume_id)
            if live is not None and attempts >= self._patience.detach_attempts:
                raise self._refused(copies, live, persistent)
            if live is not None:
                attempts += 1
                self._detach_live(server_id, live, attempts)
            elif persistent is not None:
                self._forget(server_id, persistent)
            else:
                return _state(copies, volume_id)
        raise _unsettled(server_id)

    def _read(self, server_id: str) -> _Copies | None:
        try:
            domain = self._hypervisor.domain(server_id)
        except HypervisorError as error:
            raise _port_error(error) from error
        return _copies(domain) if domain else None

    def _add(self, server_id: str, disk: Disk, copies: _Copies, lacking: _Lacking) -> None:
        """Attach to the lacking copies in one call, which libvirt does wholly or not at all."""
        _check_room(disk, copies.live if lacking.live else None)
        _check_room(disk, copies.persistent if lacking.persistent else None)
        try:
            self._hypervisor.attach(
                server_id,
                disk_xml.build(disk),
                live=lacking.live,
                persistent=lacking.persistent,
            )
        except HypervisorError as error:
            if error.trouble not in _MOVED:
                raise _port_error(error) from error

    def _forget(self, server_id: str, disk: DiskSeen) -> None:
        try:
            self._hypervisor.detach(server_id, disk.xml, live=False, persistent=True)
        except HypervisorError as error:
            if error.trouble not in _MOVED:
                raise _port_error(error) from error

    def _detach_live(self, server_id: str, disk: DiskSeen, attempt: int) -> None:
        """Ask once, and wait for an answer; whether it worked is seen by reading again."""
        with self._hypervisor.removal(server_id, disk.alias) as removal:
            try:
                self._hypervisor.detach(server_id, disk.xml, live=True, persistent=False)
            except HypervisorError as error:
                if error.trouble in _MOVED:
                    return
                if error.trouble is not Trouble.UNPLUGGING:
                    raise _port_error(error, asked_before=attempt > 1) from error
            removed = removal.wait(self._patience.detach_timeout_s)
        _LOG.info(
            "unplug of %s: attempt %d of %d, %s",
            disk.target,
            attempt,
            self._patience.detach_attempts,
            {True: "removed", False: "refused by the guest", None: "no answer"}[removed],
        )

    def _refused(self, copies: _Copies, live: DiskSeen, persistent: DiskSeen | None) -> PortError:
        """Both copies have the disk (again); the error to raise for it."""
        server_id, state = copies.domain.server_id, copies.domain.power_state
        if persistent is None and copies.persistent is not None:
            try:
                self._hypervisor.attach(server_id, live.xml, live=False, persistent=True)
            except HypervisorError as error:
                return PortError(
                    ErrorKind.UNKNOWN,
                    "guest_copies_differ",
                    f"Guest {server_id} kept {live.target}, and its definition could not be given "
                    f"it back: {error.message}",
                )
        hint = " It is paused: resume it." if state is PowerState.PAUSED else ""
        return PortError(
            ErrorKind.FINAL,
            "guest_refused",
            f"Guest {server_id} kept {live.target} in all {self._patience.detach_attempts} "
            f"attempts to unplug it.{hint} Look into the guest, then detach again.",
        )


@dataclass(frozen=True, kw_only=True)
class _Lacking:
    live: bool
    persistent: bool


_NOWHERE = DiskState(live=None, persistent=None, running=False)


def _copies(domain: Domain) -> _Copies:
    return _Copies(
        domain,
        disk_xml.parse(domain.live_xml) if domain.live_xml else None,
        disk_xml.parse(domain.persistent_xml) if domain.persistent_xml else None,
    )


def _state(copies: _Copies, volume_id: str) -> DiskState:
    live, persistent = copies.disk(volume_id)
    return DiskState(
        live=live.target if live else None,
        persistent=persistent.target if persistent else None,
        running=copies.live is not None,
    )


def _guest(copies: _Copies) -> Guest:
    """The inventory's entry: devices of either copy, the live order first."""
    read = [copy for copy in (copies.live, copies.persistent) if copy]
    return Guest(
        server_id=copies.domain.server_id,
        name=copies.domain.name,
        power_state=copies.domain.power_state,
        devices=tuple(dict.fromkeys(target for copy in read for target in copy.targets())),
        project_id=next((copy.project_id for copy in read if copy.project_id), None),
        user_id=next((copy.user_id for copy in read if copy.user_id), None),
    )


def _following(disk: Disk, found: DiskSeen | None) -> Disk:
    """The disk under the name it has in the other copy, if it is there."""
    if found is None:
        return disk
    return replace(disk, device_name=found.target, bus=found.bus or disk.bus)


def _check_room(disk: Disk, copy: DomainXml | None) -> None:
    if copy is None:
        return
    if disk.device_name in copy.targets():
        raise PortError(
            ErrorKind.FINAL,
            "device_name_taken",
            f"The guest already has another disk {disk.device_name}.",
        )
    if disk.bus == "scsi" and not copy.has_virtio_scsi:
        raise PortError(
            ErrorKind.FINAL,
            "no_scsi_controller",
            f"The guest has no virtio-scsi controller for {disk.device_name}: use a vdX name, "
            "or give the guest one (image property hw_scsi_model=virtio-scsi).",
        )


def _unsettled(server_id: str) -> PortError:
    return PortError(
        ErrorKind.UNKNOWN,
        "guest_unsettled",
        f"Guest {server_id} did not become as asked: its state kept changing, or the hypervisor "
        "said yes without doing it.",
    )


def _port_error(error: HypervisorError, *, asked_before: bool = False) -> PortError:
    kind = _KINDS.get(error.trouble, ErrorKind.FINAL)
    if asked_before and kind is ErrorKind.RETRYABLE:
        kind = ErrorKind.UNKNOWN  # an earlier request may still be granted by the guest
    return PortError(kind, _CODES.get(error.trouble, "hypervisor_error"), error.message)
