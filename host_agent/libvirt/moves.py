"""Live migration: before and after it a guest is on exactly one host, and that host is known.

Theory of operation.  libvirt moves a guest in one blocking call.  It has its own thread here, while
another thread follows the progress of the job and aborts it if requested.  The return value of the
call is not trusted: the connection may break while libvirtd continues, and the agent may have been
restarted with the job in progress.  So when the job has ended, both sides are read to find where
the guest is (`_find`):

    runs here                                 it never left
    off or gone here, arrived there           moved; what is left here is removed
    gone here, defined there and off          moved; that host has lost power since
    held here by the migration, arrived there moved; libvirt missed the last step
    held here by the migration, not there     it never left, and runs again
    neither, or there cannot be asked         unknown: nothing is done

"Arrived" is a domain that runs there and is not itself held by a migration; an incoming one is held
until the migration ends.  A guest that another user paused counts like a running one here, except
that paused on both sides is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from enum import StrEnum
from typing import Any

import structlog

from host_agent.libvirt.domain_xml import DomainXmlError, for_destination, is_shared
from host_agent.libvirt.guest_rules import (
    CHANGES_MAX,
    Copies,
    Rules,
    asking,
    not_running,
    once_begun,
    port_error,
)
from host_agent.libvirt.hypervisor import Domain, HypervisorError, Job, MigrationRoute, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Disk, PortError, Watch

_LOG = structlog.get_logger(__name__)


class _Where(StrEnum):
    HERE = "here"
    THERE = "there"


class GuestMoves(Rules):
    """The part of the Guests port that is about moving a running guest."""

    def migrate(
        self, server_id: str, destination: dict[str, Any], disks: Sequence[Disk], watch: Watch
    ) -> None:
        move: _Move | None = None
        if self._migration(server_id) is None:
            if self._find(server_id, destination) is _Where.THERE:
                return
            move = self._set_out(server_id, destination, disks, watch)
        with once_begun(lambda: True):
            cancelled = self._follow(server_id, move, watch)
            where = self._find(server_id, destination)
        if where is _Where.HERE:
            raise _stayed(server_id, destination, move, cancelled=cancelled)

    def stay(self, server_id: str, destination: dict[str, Any]) -> bool:
        end = time.monotonic() + self._patience.end_timeout_s
        while self._migration(server_id) is not None:
            if time.monotonic() > end:
                raise _unknown("job_not_ended", f"The migration of {server_id} does not end.")
            self._abort(server_id)
            time.sleep(self._patience.poll_s)
        return self._find(server_id, destination) is _Where.HERE

    def arrived(self, server_id: str) -> bool:
        """On the destination, if the source is fenced and cannot be asked.

        An incoming guest is paused until its source releases it; if the source dies before that,
        libvirt ends it.  A guest that is defined and off has arrived, and stopped since.
        """
        end = time.monotonic() + self._patience.end_timeout_s
        while True:
            here = self._look(server_id)
            if here is None:
                return False
            if here.live is None or not here.domain.stranded:
                return True
            if time.monotonic() > end:
                raise _unknown(
                    "guest_arriving",
                    f"Guest {server_id} is paused here: its migration to this host has not ended.",
                )
            time.sleep(self._patience.poll_s)

    # --- the job ---------------------------------------------------------------------------

    def _set_out(
        self, server_id: str, destination: dict[str, Any], disks: Sequence[Disk], watch: Watch
    ) -> _Move:
        """Begin, unless it is cancelled already.  Returns the thread of the blocking call."""
        if watch.cancelled():
            raise _stayed(server_id, destination, None, cancelled=True)
        if self._look_here(server_id).live is None:
            raise not_running(server_id)
        try:
            live, persistent = self._hypervisor.migratable(server_id)
            live = for_destination(live, disks)
            persistent = for_destination(persistent, disks) if persistent else None
        except HypervisorError as error:
            raise port_error(error) from error
        except DomainXmlError as error:
            raise PortError(ErrorKind.FINAL, "migration_failed", str(error)) from error
        address = destination.get("address") or None
        route = MigrationRoute(uri=destination["uri"], address=address, shared=is_shared(live))
        move = _Move(lambda: self._hypervisor.migrate(server_id, route, live, persistent))
        move.start()
        return move

    def _follow(self, server_id: str, move: _Move | None, watch: Watch) -> bool:
        """Wait until there is no job; whether it was cancelled."""
        cancelled = False
        while True:
            goes_on = move is not None and move.is_alive()
            job = self._migration(server_id)
            if job is None and not goes_on:
                return cancelled
            if job is not None:
                if job.total_bytes > 0:  # else it has just begun
                    watch.progress(job.done_bytes, job.total_bytes)
                if watch.cancelled():
                    cancelled = True
                    self._abort(server_id)
            if move is not None and goes_on:
                move.join(self._patience.poll_s)
            else:
                time.sleep(self._patience.poll_s)

    def _migration(self, server_id: str) -> Job | None:
        """The job, if there is one; UNKNOWN if the hypervisor does not answer."""
        try:
            return self._hypervisor.migration(server_id)
        except HypervisorError as error:
            raise _unknown("hypervisor_lost", error.message) from error

    def _abort(self, server_id: str) -> None:
        try:
            self._hypervisor.abort_migration(server_id)
        except HypervisorError as error:  # it has just ended, or cannot be aborted any more
            _LOG.info("migration_not_aborted", why=error.message)

    # --- where the guest is ----------------------------------------------------------------

    def _find(self, server_id: str, destination: dict[str, Any]) -> _Where:
        """Without a job in progress: find the guest, and clean up what is half done."""
        end = time.monotonic() + self._patience.end_timeout_s
        while True:
            here = self._look(server_id)
            if here is not None and here.domain.power_state is PowerState.RUNNING:
                return _Where.HERE
            there = self._there(server_id, destination)
            if there is None or there.live_xml is None:
                if here is None and there is not None:
                    return _Where.THERE
                return self._stays_here(server_id, here)
            if not there.stranded:
                self._leave(server_id, here)
                return _Where.THERE
            if time.monotonic() > end:
                raise _unknown(
                    "guest_arriving",
                    f"Guest {server_id} is paused at its destination: the migration has not ended.",
                )
            time.sleep(self._patience.poll_s)  # the destination is about to resume or end it

    def _there(self, server_id: str, destination: dict[str, Any]) -> Domain | None:
        try:
            return self._hypervisor.domain_at(destination["uri"], server_id)
        except HypervisorError as error:
            raise _unknown(
                "destination_unreachable",
                f"Whether guest {server_id} arrived cannot be determined: {error.message}",
            ) from error

    def _stays_here(self, server_id: str, here: Copies | None) -> _Where:
        for _ in range(CHANGES_MAX):
            if here is None:
                raise _unknown(
                    "guest_lost", f"Guest {server_id} is neither here nor at its destination."
                )
            if not here.domain.stranded:
                return _Where.HERE
            with asking():
                self._hypervisor.resume(server_id)
            here = self._look(server_id)
        raise _unknown("guest_held", f"Guest {server_id} is here, paused, and cannot be resumed.")

    def _leave(self, server_id: str, here: Copies | None) -> None:
        """The guest runs there: remove its definition, or its paused process, from this host."""
        for _ in range(CHANGES_MAX):
            if here is None:
                return
            if here.live is not None and not here.domain.stranded:
                break
            _LOG.warning("removing_migrated_guest", server=server_id)
            with asking():
                if here.live is not None:
                    self._hypervisor.destroy(server_id)
                else:
                    self._hypervisor.undefine(server_id)
            here = self._look(server_id)
        raise _unknown(
            "guest_in_two_places", f"Guest {server_id} is both here and at its destination."
        )


class _Move(threading.Thread):
    """The thread of the blocking call, with the context of the caller."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(name="migration", daemon=True)
        self._call = call
        self._in_context = copy_context().run
        self.error: HypervisorError | None = None

    def run(self) -> None:
        try:
            self._in_context(self._call)
        except HypervisorError as error:
            self.error = error


def _stayed(
    server_id: str, destination: dict[str, Any], move: _Move | None, *, cancelled: bool
) -> PortError:
    """The error for a guest that did not move."""
    if cancelled:
        return PortError(
            ErrorKind.FINAL, "cancelled", f"The migration of {server_id} was cancelled."
        )
    error = move.error if move else None
    if error is not None and error.trouble is not Trouble.LOST:
        return port_error(error, refused="migration_failed")
    why = error.message if error else "libvirt gave no reason."
    return PortError(
        ErrorKind.FINAL,
        "migration_failed",
        f"Guest {server_id} did not move to {destination.get('host')} and is still here: {why}",
    )


def _unknown(code: str, message: str) -> PortError:
    return PortError(ErrorKind.UNKNOWN, code, message)
