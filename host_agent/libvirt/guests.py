"""The Guests port over a hypervisor: the inventory, and plugging and unplugging disks.

Theory of operation.  Both copies of a guest's devices must agree after every outcome.

libvirt's detach returns success after 5 s, even if the guest has not released the disk.  A detach
during the guest's boot is lost.  The guest may be started, stopped or removed between a look and a
change.  So both calls are loops (see guest_rules.py).

Unplug removes the live disk first.  If the guest refuses, the definition is unchanged; if the
definition lacks the disk (an earlier attempt, or another program), the disk is added again.  A
refused removal cannot be cancelled: if the guest releases the disk later, the next inventory shows
it, and a new unplug finds the disk missing, which is success.

power.py and moves.py change whole guests, copies.py the source of a disk that stays, snapshots.py
the files of a disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from host_agent.libvirt import disk_xml
from host_agent.libvirt.disk_xml import DiskSeen, DomainXml
from host_agent.libvirt.domain_xml import definition_of
from host_agent.libvirt.guest_rules import (
    CHANGES_MAX,
    MOVED,
    Copies,
    Patience,
    asking,
    copies_of,
    port_error,
    unsettled,
)
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.libvirt.moves import GuestMoves
from host_agent.libvirt.power import GuestPower
from host_agent.libvirt.snapshots import GuestSnapshots
from host_agent.shared.contract.messages import ErrorKind, Guest, PowerState
from host_agent.shared.contract.ports import Disk, DiskState, PortError
from host_agent.shared.contract.survey import DiskShown, GuestShown, GuestsShown, Opened

__all__ = ["HypervisorGuests", "Patience"]

_LOG = structlog.get_logger(__name__)


class HypervisorGuests(GuestPower, GuestMoves, GuestSnapshots):
    """The Guests port: the rules, over any hypervisor."""

    def inventory(self) -> list[Guest]:
        """Every domain of this hypervisor, in any state, persistent or transient."""
        with asking(frozenset()):
            domains = self._hypervisor.domains()
        return [_guest(copies_of(domain)) for domain in domains]

    def guest(self, server_id: str) -> Guest | None:
        copies = self._look(server_id)
        return _guest(copies) if copies else None

    def survey(self) -> GuestsShown:
        with asking(frozenset()):
            domains = self._hypervisor.domains()
        found = [copies_of(domain) for domain in domains]
        return GuestsShown(
            guests=tuple(sorted(map(_shown, found), key=lambda guest: guest.server_id)),
            opened=tuple(disk for each in found for disk in _opened(each)),
        )

    def sizes(self) -> dict[tuple[str, str], int]:
        with asking(frozenset()):
            found = self._hypervisor.sizes()
        return found  # noqa: RET504 - as in keep_secret

    def secrets(self) -> list[str]:
        with asking(frozenset()):
            found = sorted(self._hypervisor.secrets())
        return found  # noqa: RET504 - as in keep_secret

    def disk(self, server_id: str, serial: str) -> DiskState:
        copies = self._look(server_id)
        return _state(copies, serial) if copies else _NOWHERE

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        for _ in range(CHANGES_MAX):
            copies = self._look_here(server_id)
            live, persistent = copies.disk(disk.serial)
            lacking = _Lacking(
                live=copies.live is not None and live is None,
                persistent=copies.persistent is not None and persistent is None,
            )
            if lacking.live or lacking.persistent:
                self._add(server_id, disk_xml.following(disk, live or persistent), copies, lacking)
                continue
            if live is not None and disk.readonly and not live.readonly:
                raise _writable(server_id, live)
            if live is None and persistent is not None and disk.readonly > persistent.readonly:
                self._define_read_only(server_id, persistent)
                continue
            if live is None or persistent is None or not copies.differences(disk.serial):
                return _state(copies, disk.serial)
            self._define_like(server_id, live, persistent)
        raise unsettled(server_id)

    def unplug(self, server_id: str, serial: str) -> DiskState:
        attempts = 0
        for _ in range(CHANGES_MAX + self._patience.detach_attempts):
            copies = self._look(server_id)
            if copies is None:
                return _NOWHERE
            live, persistent = copies.disk(serial)
            if live is not None and attempts >= self._patience.detach_attempts:
                raise self._refused(copies, live, persistent)
            if live is not None:
                attempts += 1
                self._detach_live(server_id, live, attempts)
            elif persistent is not None:
                self._forget(server_id, persistent)
            else:
                return _state(copies, serial)
        raise unsettled(server_id)

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        with asking(frozenset()):
            kept = self._hypervisor.keep_secret(volume_id, passphrase)
        return kept  # noqa: RET504 - mypy: the `with` block may swallow an exception

    def drop_secret(self, volume_id: str) -> None:
        with asking(frozenset()):
            self._hypervisor.drop_secret(volume_id)

    def _add(self, server_id: str, disk: Disk, copies: Copies, lacking: _Lacking) -> None:
        """Attach to the copies without the disk, in one call, which is atomic in libvirt."""
        _check_room(disk, copies.live if lacking.live else None)
        _check_room(disk, copies.persistent if lacking.persistent else None)
        definition = copies.persistent if not lacking.live else None
        boot = definition is not None and _may_order(disk, definition)
        with asking():
            self._hypervisor.attach(
                server_id,
                disk_xml.build(disk, boot=boot),
                live=lacking.live,
                persistent=lacking.persistent,
            )

    def _define_like(self, server_id: str, live: DiskSeen, persistent: DiskSeen) -> None:
        """The live disk cannot be changed, so the definition's is updated."""
        _LOG.warning(
            "definition_differs", disk=live.target, facts=disk_xml.differences(live, persistent)
        )
        if live.target != persistent.target:  # libvirt's key of a disk, so it is added again
            self._forget(server_id, persistent)
            return
        with asking():
            self._hypervisor.update(server_id, disk_xml.in_place_of(persistent.xml, live.xml))

    def _define_read_only(self, server_id: str, persistent: DiskSeen) -> None:
        """The guest is off: its next start may not write to the disk.  Never the reverse
        (disk_xml.following).
        """
        with asking():
            self._hypervisor.update(server_id, disk_xml.read_only(persistent.xml))

    def _forget(self, server_id: str, disk: DiskSeen) -> None:
        with asking():
            self._hypervisor.detach(server_id, disk.xml, live=False, persistent=True)

    def _detach_live(self, server_id: str, disk: DiskSeen, attempt: int) -> None:
        """Request it once and wait for an event; the next look shows the result."""
        with self._hypervisor.removal(server_id, disk.alias) as removal:
            try:
                self._hypervisor.detach(server_id, disk.xml, live=True, persistent=False)
            except HypervisorError as error:
                if error.trouble in MOVED:
                    return
                if error.trouble is not Trouble.UNPLUGGING:
                    raise port_error(error, asked_before=attempt > 1) from error
            removed = removal.wait(self._patience.detach_timeout_s)
        outcome = {True: "removed", False: "refused by the guest", None: "no answer"}[removed]
        _LOG.info("unplug", disk=disk.target, attempt=attempt, outcome=outcome)

    def _refused(self, copies: Copies, live: DiskSeen, persistent: DiskSeen | None) -> PortError:
        """Put the disk back into the definition, if it is missing there; the error to raise."""
        server_id, state = copies.domain.server_id, copies.domain.power_state
        if persistent is None and copies.persistent is not None:
            try:
                self._hypervisor.attach(server_id, live.xml, live=False, persistent=True)
            except HypervisorError as error:
                return PortError(
                    ErrorKind.UNKNOWN,
                    "guest_copies_differ",
                    f"Guest {server_id} kept {live.target}, and the disk could not be put back "
                    f"into its definition: {error.message}",
                )
        hint = " It is paused: resume it." if state is PowerState.PAUSED else ""
        return PortError(
            ErrorKind.FINAL,
            "guest_refused",
            f"Guest {server_id} kept {live.target} in all {self._patience.detach_attempts} "
            f"attempts to unplug it.{hint} Look into the guest, then detach again.",
        )


def _writable(server_id: str, live: DiskSeen) -> PortError:
    return PortError(
        ErrorKind.FINAL,
        "disk_writable",
        f"Guest {server_id} runs with {live.target} writable, and is to have it read-only: detach "
        "it from the guest, then attach it again.",
    )


@dataclass(frozen=True, kw_only=True)
class _Lacking:
    live: bool
    persistent: bool


_NOWHERE = DiskState(live=None, persistent=None, running=False)


def _state(copies: Copies, serial: str) -> DiskState:
    live, persistent = copies.disk(serial)
    return DiskState(
        live=live.target if live else None,
        persistent=persistent.target if persistent else None,
        running=copies.live is not None,
        sources=_sources(live, persistent),
        differs=copies.differences(serial),
        readonly=(live.readonly if live else None, persistent.readonly if persistent else None),
    )


def _sources(*copies: DiskSeen | None) -> tuple[str, ...]:
    """The sources of the disk in both copies, and the target of a copy in progress."""
    places = (place for disk in copies if disk is not None for place in disk.places)
    found = (disk_xml.short(place) for place in places)
    return tuple(dict.fromkeys(source for source in found if source))


def _guest(copies: Copies) -> Guest:
    """The inventory's entry: devices of both copies, the live ones first."""
    read = [copy for copy in (copies.live, copies.persistent) if copy]
    domain = copies.domain.persistent_xml or copies.domain.live_xml
    return Guest(
        server_id=copies.domain.server_id,
        name=copies.domain.name,
        power_state=copies.domain.power_state,
        devices=tuple(dict.fromkeys(target for copy in read for target in copy.targets())),
        volumes=tuple(dict.fromkeys(volume for copy in read for volume in copy.volumes())),
        project_id=next((copy.project_id for copy in read if copy.project_id), None),
        user_id=next((copy.user_id for copy in read if copy.user_id), None),
        definition=definition_of(domain) if domain else None,
    )


def _shown(copies: Copies) -> GuestShown:
    read = [copy for copy in (copies.live, copies.persistent) if copy]
    serials = sorted({serial for copy in read for serial in copy.volumes()})
    return GuestShown(
        server_id=copies.domain.server_id,
        power_state=copies.domain.power_state,
        defined=copies.persistent is not None,
        disks=tuple(_disk_shown(copies, serial) for serial in serials),
    )


def _disk_shown(copies: Copies, serial: str) -> DiskShown:
    live, persistent = copies.disk(serial)
    sources = _sources(live, persistent)
    return DiskShown(
        serial=serial,
        live=live.target if live else None,
        persistent=persistent.target if persistent else None,
        readonly_live=live.readonly if live else None,
        readonly_persistent=persistent.readonly if persistent else None,
        source=sources[0] if sources else None,
        differs=copies.differences(serial),
    )


def _opened(copies: Copies) -> list[Opened]:
    """The disks of both copies, merged by serial if that is an id, else by target."""
    found: dict[str, list[DiskSeen]] = {}
    read = [copy for copy in (copies.live, copies.persistent) if copy]
    for disk in (disk for copy in read for disk in copy.disks):
        found.setdefault(disk.volume or disk.target, []).append(disk)
    live = copies.live.disks if copies.live else ()
    return [
        Opened(
            server_id=copies.domain.server_id,
            target=disks[0].target,
            serial=disks[0].volume,
            live=disks[0] in live,
            sources=_sources(*disks),
        )
        for disks in found.values()
    ]


def _may_order(disk: Disk, definition: DomainXml) -> bool:
    """Whether libvirt accepts a boot order of this disk: each number once, and not with
    `<os><boot>`.

    With `<os><boot>` libvirt boots from the first disk of the first bus.
    """
    free = disk_xml.is_bootable(disk) and disk_xml.boot_order(disk) not in definition.boot_orders
    return free and definition.boots_by_order


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
