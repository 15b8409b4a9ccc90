"""Defining, starting, stopping and removing whole guests; each call is idempotent.

Every call looks first, and returns at once if the guest is as requested.  Otherwise it makes the
next change and looks again (see guest_rules.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from host_agent.libvirt import disk_xml
from host_agent.libvirt.domain_xml import DomainXmlError, domain_of
from host_agent.libvirt.guest_rules import (
    CHANGES_MAX,
    Copies,
    Rules,
    asking,
    not_running,
    port_error,
    unsettled,
)
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, PortError

_LOG = structlog.get_logger(__name__)


class GuestPower(Rules):
    """The part of the Guests port about whole guests."""

    def power(self, server_id: str) -> PowerState | None:
        copies = self._look(server_id)
        return copies.domain.power_state if copies else None

    def process(self, server_id: str) -> bool:
        return self._hypervisor.process(server_id)

    def spawn(
        self, server_id: str, definition: str, disks: Sequence[Disk], *, running: bool
    ) -> PowerState:
        defined = False
        for _ in range(CHANGES_MAX):
            copies = self._look(server_id)
            if copies is not None and copies.live is not None:
                if not running and not defined:
                    raise _runs(server_id)
                return copies.domain.power_state
            if defined and copies is not None and _has_just(copies, disks):
                return self._run(server_id) if running else copies.domain.power_state
            # Always once, because libvirt changes a definition, so it cannot be compared.
            own = copies.domain.persistent_xml if copies is not None else None
            self._define(server_id, definition, disks, own)
            defined = True
        raise unsettled(server_id)

    def start(self, server_id: str) -> PowerState:
        return self._run(server_id)

    def stop(self, server_id: str, *, force: bool) -> PowerState:
        """A transient guest is defined first, because it would disappear when it stops."""
        for _ in range(CHANGES_MAX):
            copies = self._look(server_id)
            if copies is None:
                return PowerState.NOSTATE
            if copies.live is None:
                return copies.domain.power_state
            if copies.persistent is None:
                self._define_what_runs(server_id)
                continue
            if not force and copies.domain.power_state is PowerState.RUNNING:
                force = True  # one shutdown with its timeout, then power off
                if self._shut_down(server_id):
                    continue
                _LOG.warning("guest_powered_off", why="it did not shut down in time")
            with asking():
                self._hypervisor.destroy(server_id)
        raise unsettled(server_id)

    def _define_what_runs(self, server_id: str) -> None:
        with asking():
            live, persistent = self._hypervisor.migratable(server_id)
            if persistent is None:
                self._hypervisor.define(live)

    def pause(self, server_id: str) -> PowerState:
        return self._become(server_id, PowerState.PAUSED, self._hypervisor.suspend)

    def resume(self, server_id: str) -> PowerState:
        return self._become(server_id, PowerState.RUNNING, self._hypervisor.resume)

    def remove(self, server_id: str) -> None:
        for _ in range(CHANGES_MAX):
            copies = self._look(server_id)
            if copies is None:
                return
            with asking():
                if copies.live is not None:
                    self._hypervisor.destroy(server_id)
                else:
                    self._hypervisor.undefine(server_id)
        raise unsettled(server_id)

    def _define(
        self, server_id: str, definition: str, disks: Sequence[Disk], own: str | None
    ) -> None:
        try:
            made = domain_of(definition, server_id, disks, self._xml_host, own)
            if made.dropped:
                _LOG.warning(
                    "definition_parts_dropped",
                    server=server_id,
                    parts=made.dropped,
                    hint="the guest's former host may not decide these for this one",
                )
            self._hypervisor.define(made.xml)
        except DomainXmlError as error:
            raise PortError(ErrorKind.FINAL, "bad_definition", str(error)) from error
        except HypervisorError as error:
            raise port_error(error, refused="bad_definition") from error

    def _run(self, server_id: str) -> PowerState:
        failed: HypervisorError | None = None
        for _ in range(CHANGES_MAX):
            copies = self._look_here(server_id)
            if copies.live is not None:
                return copies.domain.power_state
            if failed is not None:
                raise port_error(failed, refused="guest_start_failed") from failed
            try:
                self._hypervisor.start(server_id)
            except HypervisorError as error:
                failed = error  # another program may have started it: look
        raise unsettled(server_id)

    def _shut_down(self, server_id: str) -> bool:
        """Request a shutdown, repeatedly, because a booting guest ignores it; whether it is off in
        time.
        """
        end = time.monotonic() + self._patience.shutdown_timeout_s
        while (left := end - time.monotonic()) > 0:
            with asking(_REFUSED):
                self._hypervisor.shutdown(server_id)
            if self._wait_for(
                lambda: not self._is_live(server_id), min(left, self._patience.shutdown_again_s)
            ):
                return True
        return False

    def _is_live(self, server_id: str) -> bool:
        copies = self._look(server_id)
        return copies is not None and copies.live is not None

    def _become(self, server_id: str, wanted: PowerState, act: Callable[[str], None]) -> PowerState:
        for _ in range(CHANGES_MAX):
            copies = self._look_here(server_id)
            if copies.live is None:
                raise not_running(server_id)
            if copies.domain.power_state is wanted:
                return wanted
            with asking():
                act(server_id)
        raise unsettled(server_id)


#: Errors of a shutdown request after which the guest is powered off all the same.
_REFUSED = frozenset(Trouble) - {Trouble.UNREACHABLE, Trouble.LOST}


def _has_just(copies: Copies, disks: Sequence[Disk]) -> bool:
    seen = copies.persistent.disks if copies.persistent else ()
    volumes = {disk.serial: disk.place for disk in seen if disk.is_volume}
    return volumes == {disk.serial: disk_xml.place(disk.source) for disk in disks}


def _runs(server_id: str) -> PortError:
    return PortError(
        ErrorKind.FINAL,
        "guest_running",
        f"Guest {server_id} runs on this host, so its definition is not replaced: stop it first.",
    )
