"""Files of a running disk: add one above the present one, or merge one into another.

Theory of operation.  A volume that is a file may be a chain of files in one directory: the guest
writes to the first file, and reads missing data from the next one.  Cinder names the files.  QEMU,
which has them open, does the work.  libvirt's live XML shows the present chain, with a number for
each file.  So each call reads that first and finds by names what is already done; a restarted agent
finds its job in progress.

* A snapshot adds an empty file above the present one.  Both have the same data until the guest
  writes.
* Its undo merges the data into the file below while the guest runs, and then switches the guest, as
  at the end of a copy (copies.py); libvirt shows it as one, `<mirror>`.
* A merge removes a file from the middle (commit: into the one below), or all files below the first
  down to a given one (pull).  If it is aborted or crashes at any moment, the chain is as before:
  the upper file still covers what is already in a lower one.

libvirt updates the definition of the guest.  All this is done only to a running guest.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from host_agent.libvirt import disk_xml
from host_agent.libvirt.copies import GuestCopies, being_copied, no_disk
from host_agent.libvirt.disk_xml import DiskSeen, Layer
from host_agent.libvirt.guest_rules import (
    CHANGES_MAX,
    MOVED,
    Copies,
    asking,
    not_running,
    once_begun,
    port_error,
    unsettled,
)
from host_agent.libvirt.hypervisor import HypervisorError
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Merge, PortError, Watch

_LOG = structlog.get_logger(__name__)


class GuestSnapshots(GuestCopies):
    """The part of the Guests port about the files of a disk."""

    def snapshot(self, server_id: str, serial: str, file: str) -> None:
        begun = False
        with once_begun(lambda: begun):
            for _ in range(CHANGES_MAX):
                off = _off(self._look_here(server_id), serial)
                if off and _files(off)[0].name == file:
                    return
                live = self._running(server_id, serial)
                chain = _files(live)
                if chain[0].name == file:
                    self._define_as(server_id, serial, live.xml)
                    return
                _refuse_busy(server_id, live)
                if disk_xml.secret_of(live.xml) is not None:
                    raise _encrypted(live)
                if file in {layer.name for layer in chain}:
                    raise _other_chain(server_id, live, f"{file} is below {chain[0].name} there")
                path = posixpath.join(posixpath.dirname(chain[0].path or ""), file)
                with _asking_of("snapshot_failed"):
                    self._hypervisor.snapshot(server_id, live.target, path)
                begun = True
        raise unsettled(server_id)

    def unsnapshot(self, server_id: str, serial: str, file: str, watch: Watch) -> None:
        course = _SnapshotCourse(watch)
        with once_begun(lambda: course.begun > 0):
            while not self._back(server_id, serial, file, course):
                pass

    def merge(self, server_id: str, serial: str, merge: Merge, watch: Watch) -> None:
        course = _SnapshotCourse(watch)
        with once_begun(lambda: course.begun > 0):
            while not self._merged(server_id, serial, merge, course):
                pass

    def end_merge(self, server_id: str, serial: str, merge: Merge) -> bool:
        for _ in range(CHANGES_MAX):
            copies = self._look(server_id)
            live = copies.disk(serial)[0] if copies else None
            if live is None:  # a job ends with its guest
                return True
            if not self._job(server_id, live, None):
                return not _is_merged(server_id, self._running(server_id, serial), merge)
            self._end(server_id, live, switch=False)
        raise unsettled(server_id)

    def _running(self, server_id: str, serial: str) -> DiskSeen:
        copies = self._look_here(server_id)
        live, _ = copies.disk(serial)
        if _off(copies, serial):
            raise not_running(server_id)
        if live is None:
            raise no_disk(server_id, serial)
        return live

    def _back(self, server_id: str, serial: str, file: str, course: _SnapshotCourse) -> bool:
        """Look, and make the next change; whether the guest writes to a file below this one."""
        copies = self._look_here(server_id)
        live, _ = copies.disk(serial)
        if off := _off(copies, serial):
            if _files(off)[0].name != file:
                return True
            raise _off_with(server_id, off, file)
        if live is None:
            raise no_disk(server_id, serial)
        chain, mirror = _files(live), live.mirror
        if chain[0].name != file:
            self._define_as(server_id, serial, live.xml)
            return True
        if len(chain) == 1 or (mirror is None and course.begun >= CHANGES_MAX):
            raise _failed("snapshot_kept", server_id, live)
        if mirror is None:
            with _asking_of("snapshot_kept"):
                self._hypervisor.commit(server_id, live.target, None, chain[1].index or "")
            course.begun += 1
        elif mirror.place[:1] != (chain[1].path,):
            _refuse_busy(server_id, live)
        elif mirror.ready:
            course.switches += 1
            self._end(server_id, live, switch=course.switches <= CHANGES_MAX)
        else:
            self._job(server_id, live, course.watch)
            course.watch.cancelled()  # raises Stopping; the next agent process finds the job
            time.sleep(self._patience.poll_s)
        return False

    def _merged(self, server_id: str, serial: str, merge: Merge, course: _SnapshotCourse) -> bool:
        """Look, and make the next change; whether the chain is as requested."""
        # The job first: if it ends in between, the second look shows the new chain.
        target = self._running(server_id, serial)
        under_way = self._job(server_id, target, course.watch)
        live = self._running(server_id, serial)
        _refuse_busy(server_id, live)
        if under_way:
            course.begun += 1
            if course.watch.cancelled():
                self._end(server_id, live, switch=False)
            time.sleep(self._patience.poll_s)
            return False
        if (todo := _next(server_id, live, merge)) is None:
            return True
        if course.watch.cancelled():
            raise _failed("cancelled", server_id, live)
        if course.begun:
            raise _failed("merge_failed", server_id, live)
        with _asking_of("merge_failed"):
            top, base = todo
            if merge.into is None:
                self._hypervisor.pull(server_id, live.target, base)
            else:
                self._hypervisor.commit(server_id, live.target, top, base or "")
        course.begun += 1
        return False

    def _job(self, server_id: str, live: DiskSeen, watch: Watch | None) -> bool:
        """Whether the disk has a block job; its progress goes to `watch`."""
        job = None
        with asking():
            job = self._hypervisor.copying(server_id, live.target)
        if job is not None and watch is not None and job.total_bytes > 0:
            watch.progress(job.done_bytes, job.total_bytes)
        return job is not None


@contextmanager
def _asking_of(refused: str) -> Iterator[None]:
    """As `asking`, with this code for a refusal."""
    try:
        yield
    except HypervisorError as error:
        if error.trouble not in MOVED:
            raise port_error(error, refused=refused) from error
        _LOG.info("files_not_worked_on", why=error.message)


@dataclass
class _SnapshotCourse:
    """How many jobs this call has begun or found, and how often it requested the switch."""

    watch: Watch
    begun: int = 0
    switches: int = 0


def _off(copies: Copies, serial: str) -> DiskSeen | None:
    """The disk in the definition of a guest that is off."""
    return copies.disk(serial)[1] if copies.live is None else None


def _files(disk: DiskSeen) -> tuple[Layer, ...]:
    chain = disk.chain
    if not chain or any(layer.path is None for layer in chain):
        raise PortError(
            ErrorKind.FINAL, "no_file", f"Disk {disk.target} is no file, so it has no snapshots."
        )
    return chain


def _next(server_id: str, live: DiskSeen, merge: Merge) -> tuple[str | None, str | None] | None:
    """The indices of the files for the job: top and base.  None: it is merged already.

    Raises PortError if this merge can neither begin with nor result in this chain.
    """
    chain = _files(live)
    place = {layer.name: number for number, layer in enumerate(chain)}
    if merge.into is None:
        base = place.get(merge.file) if merge.file else len(chain)
        if base is None or base == 0:
            raise _other_chain(server_id, live, f"{merge.file} is not below {chain[0].name} there")
        if base == 1:
            return None
        return chain[0].index, chain[base].index if merge.file else None
    into = place.get(merge.into)
    if into is None or into == 0:
        raise _other_chain(server_id, live, f"{merge.into} is not below {chain[0].name} there")
    top = place.get(merge.file)
    if top is None:
        return None
    if top == 0 or top + 1 != into:
        raise _other_chain(server_id, live, f"{merge.file} is not next above {merge.into} there")
    return chain[top].index, chain[into].index


def _is_merged(server_id: str, live: DiskSeen, merge: Merge) -> bool:
    """False also for a chain that the merge could not have begun with."""
    try:
        return _next(server_id, live, merge) is None
    except PortError as error:
        if error.code != "other_chain":
            raise
        return False


def _refuse_busy(server_id: str, live: DiskSeen) -> None:
    if live.mirror is not None:
        raise being_copied(server_id, live)


def _encrypted(live: DiskSeen) -> PortError:
    text = f"Disk {live.target} is encrypted: a file above it would need its key at each start."
    return PortError(ErrorKind.FINAL, "no_file", text)


def _other_chain(server_id: str, live: DiskSeen, why: str) -> PortError:
    return PortError(
        ErrorKind.FINAL,
        "other_chain",
        f"Disk {live.target} of guest {server_id} has other files than Cinder takes it to have: "
        f"{why}.",
    )


def _off_with(server_id: str, persistent: DiskSeen, file: str) -> PortError:
    text = (
        f"Guest {server_id} does not run, and {persistent.target} is defined with {file}, which "
        "may hold what it wrote last: start it as it is defined (virsh), then retry."
    )
    return PortError(ErrorKind.FINAL, "guest_not_running", text)


def _failed(code: str, server_id: str, live: DiskSeen) -> PortError:
    what = {
        "cancelled": "was cancelled",
        "merge_failed": "ended with an error: see the hypervisor's log, and the share for room",
        "snapshot_kept": "could not be taken back: see the hypervisor's log",
    }[code]
    text = f"The work on the files of {live.target} of guest {server_id} {what}."
    return PortError(ErrorKind.FINAL, code, text)
