"""Changes of a disk's source while the disk stays: copy and switch, or a new path.

Theory of operation.  A copy is a QEMU job: it mirrors the live disk to the new volume, and is
*ready* when both have the same data.  From then on each write goes to both before the guest sees it
complete.  Then the guest is switched.  The live disk and the definition cannot be switched at the
same moment, and a guest that stops in between would start from its definition.  So the definition
is switched first, while the copy is ready and both volumes have everything, then the guest.  If the
guest is not switched, the definition is switched back.  Therefore the live disk is the truth while
the guest runs, and the definition when it is off.

A disk grows by whole GiB, as Cinder's volumes do.  So its new size is known without reading the
LUKS header, which only QEMU reads (decision 0065).

A job in progress is read from the guest's XML (`<mirror>`), so a restarted agent finds its copy,
and takes no other one for its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from host_agent.libvirt import disk_xml
from host_agent.libvirt.disk_xml import DiskSeen, Mirror
from host_agent.libvirt.guest_rules import (
    CHANGES_MAX,
    Rules,
    asking,
    not_running,
    once_begun,
    port_error,
    unsettled,
)
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Disk, PortError, Watch

_LOG = structlog.get_logger(__name__)


class GuestCopies(Rules):
    """The part of the Guests port that changes what a disk reads and writes."""

    def replace(self, server_id: str, disk: Disk) -> None:
        live, persistent = self._look_here(server_id).disk(disk.serial)
        found = live or persistent
        if found is None:
            raise no_disk(server_id, disk.serial)
        if live is not None and not _is_on(live, disk):
            if disk_xml.is_same_data(live.place, disk_xml.place(disk.source)):
                return  # QEMU has the key: the definition follows when the guest is off
            raise PortError(
                ErrorKind.FINAL,
                "refresh_needs_stop",
                f"Guest {server_id} runs and keeps {live.target} open by the old connection. Give "
                "this operation up, then reboot the server hard, or stop and start it: then it "
                "gets the new connection.",
            )
        self._define_as(server_id, disk.serial, _built(disk, found))

    def grow(self, server_id: str, serial: str, room: int, *, unit: int) -> int | None:
        """At least one resize, even if the size seems right: QEMU may not have told the guest."""
        asked = 0
        for _ in range(CHANGES_MAX):
            live, _ = self._look_here(server_id).disk(serial)
            if live is None:
                return None
            with asking():
                has = self._hypervisor.size(server_id, live.target)
                if asked and has >= asked:
                    return has
                asked = has + max(0, room - has) // unit * unit
                self._hypervisor.resize(server_id, live.target, asked)
        raise unsettled(server_id)

    def copy(self, server_id: str, disk: Disk, watch: Watch) -> None:
        course = _CopyCourse(watch)
        with once_begun(lambda: course.begun):
            while not self._step(server_id, disk, course):
                pass

    def stay_on(self, server_id: str, disk: Disk) -> bool:
        for _ in range(CHANGES_MAX):
            live, persistent = self._look_here(server_id).disk(disk.serial)
            found = live or persistent
            if found is None:
                raise no_disk(server_id, disk.serial)
            if live is None or live.mirror is None:
                self._define_as(server_id, disk.serial, found.xml)
                return not _is_on(found, disk)
            self._end(server_id, live, switch=False)
        raise unsettled(server_id)

    def _step(self, server_id: str, disk: Disk, course: _CopyCourse) -> bool:
        """Look, and make the next change; whether the guest is on the new volume."""
        copies = self._look_here(server_id)
        live, persistent = copies.disk(disk.serial)
        if live is None:
            if persistent is None or copies.live is not None:
                raise no_disk(server_id, disk.serial)
            if _is_on(persistent, disk):
                return True
            raise not_running(server_id)
        mirror = live.mirror
        if mirror is None:
            if _is_on(live, disk):
                self._define_as(server_id, disk.serial, _built(disk, live))
                return True
            self._begin(server_id, disk, live, course)
        else:
            self._go_on(server_id, disk, live, mirror, course)
        return False

    def _begin(self, server_id: str, disk: Disk, live: DiskSeen, course: _CopyCourse) -> None:
        """The guest is on its old volume, and no job is in progress."""
        if course.begun or course.watch.cancelled():
            self._define_as(server_id, disk.serial, live.xml)
            raise _stayed(server_id, live.target, cancelled=course.watch.cancelled())
        try:
            self._hypervisor.copy(server_id, live.target, _built(disk, live))
        except HypervisorError as error:
            raise port_error(error, refused="copy_failed") from error
        course.begun = True

    def _go_on(
        self, server_id: str, disk: Disk, live: DiskSeen, mirror: Mirror, course: _CopyCourse
    ) -> None:
        if mirror.place != disk_xml.place(disk.source):
            raise being_copied(server_id, live)
        course.begun = True
        if course.watch.cancelled() or course.switches >= CHANGES_MAX:
            self._end(server_id, live, switch=False)
        elif mirror.ready:
            course.switches += 1
            self._define_as(server_id, disk.serial, _built(disk, live))
            self._end(server_id, live, switch=True)
        else:
            with asking():
                job = self._hypervisor.copying(server_id, live.target)
            if job is not None and job.total_bytes > 0:
                course.watch.progress(job.done_bytes, job.total_bytes)
            time.sleep(self._patience.poll_s)

    def _end(self, server_id: str, live: DiskSeen, *, switch: bool) -> None:
        """Request the end of the copy; the next look shows the result."""
        try:
            self._hypervisor.end_copy(server_id, live.target, switch=switch)
        except HypervisorError as error:
            if error.trouble in (Trouble.UNREACHABLE, Trouble.LOST):
                raise port_error(error) from error
            _LOG.info("copy_not_ended", switch=switch, why=error.message)
            time.sleep(self._patience.poll_s)

    def _define_as(self, server_id: str, serial: str, disk: str) -> None:
        """Update the disk in the guest's definition, if it is there."""
        for _ in range(CHANGES_MAX):
            copies = self._look(server_id)
            persistent = copies.disk(serial)[1] if copies else None
            if persistent is None or disk_xml.same_by_definition(persistent.xml, disk):
                return
            with asking():
                self._hypervisor.update(server_id, disk_xml.in_place_of(persistent.xml, disk))
        raise unsettled(server_id)


@dataclass
class _CopyCourse:
    """The state of a copy in this call."""

    watch: Watch
    begun: bool = False
    switches: int = 0


def _is_on(found: DiskSeen, disk: Disk) -> bool:
    return found.place == disk_xml.place(disk.source)


def _built(disk: Disk, found: DiskSeen) -> str:
    return disk_xml.build(disk_xml.following(disk, found))


def no_disk(server_id: str, serial: str) -> PortError:
    return PortError(
        ErrorKind.FINAL, "disk_not_plugged", f"Guest {server_id} has no disk of volume {serial}."
    )


def being_copied(server_id: str, live: DiskSeen) -> PortError:
    text = f"Disk {live.target} of guest {server_id} is being copied to somewhere else."
    return PortError(ErrorKind.RETRYABLE, "guest_busy", text)


def _stayed(server_id: str, target: str, *, cancelled: bool) -> PortError:
    if cancelled:
        return PortError(
            ErrorKind.FINAL, "cancelled", f"The copy of {target} of {server_id} was cancelled."
        )
    return PortError(
        ErrorKind.FINAL,
        "copy_failed",
        f"The copy of {target} of guest {server_id} ended with an error: check the new volume "
        "for I/O errors, and the hypervisor's log.",
    )
