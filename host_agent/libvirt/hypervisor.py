"""The interface to a hypervisor: a thin layer over libvirt, or its simulation.

`guests.py` decides; the implementations of this interface only act and report.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from host_agent.shared.contract.messages import PowerState


class Trouble(StrEnum):
    """The meaning of a hypervisor's error."""

    DOMAIN_MISSING = "domain_missing"
    DOMAIN_INACTIVE = "domain_inactive"  # a live change of a guest that does not run
    DEVICE_MISSING = "device_missing"
    TARGET_TAKEN = "target_taken"
    NO_FREE_PORT = "no_free_port"
    BUSY = "busy"  # a job (migration, block copy) has the guest or the disk
    DOMAIN_ACTIVE = "domain_active"  # a start of a guest that runs
    UNPLUGGING = "unplugging"  # requested before; the guest has not answered yet
    SECRET_MISSING = "secret_missing"  # noqa: S105 - or its value
    UNREACHABLE = "unreachable"  # no connection: the request was not sent
    LOST = "lost"  # the connection broke during the call: it may have happened
    OTHER = "other"


class HypervisorError(Exception):
    """The hypervisor refused, or could not be reached; `trouble` says which."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain as it is now.  A transient one has no persistent XML.

    `stranded`: paused by a migration.  Either it is still incoming, or the outgoing migration broke
    off at a point where libvirt does not resume the guest.
    """

    server_id: str
    name: str
    power_state: PowerState
    live_xml: str | None
    persistent_xml: str | None
    stranded: bool = False


@dataclass(frozen=True, kw_only=True)
class MigrationRoute:
    """The destination of a live migration: its hypervisor, and the address for the data.

    `shared`: all disks that the guest writes to are shared with the destination.
    """

    uri: str
    address: str | None
    shared: bool


@dataclass(frozen=True)
class Job:
    """A migration or block job in progress."""

    done_bytes: int
    total_bytes: int


class Removal(Protocol):
    """Waits for the device-removed or removal-failed event of one domain."""

    def wait(self, timeout_s: float) -> bool | None:
        """True: removed, False: the guest refused, None: no event in time."""


class Hypervisor(Protocol):
    """All calls block and raise HypervisorError only."""

    def domains(self) -> list[Domain]: ...

    def domain(self, server_id: str) -> Domain | None: ...

    def process(self, server_id: str) -> bool:
        """See Guests."""

    def domain_at(self, uri: str, server_id: str) -> Domain | None:
        """The domain at another host, read-only."""

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def removal(self, server_id: str, alias: str | None) -> AbstractContextManager[Removal]:
        """Watches from now on, so that an event before `wait` is not missed."""

    def update(self, server_id: str, disk: str) -> None:
        """Replace the disk of the same target in the persistent definition."""

    def size(self, server_id: str, target: str) -> int:
        """The size of the running guest's disk, in bytes."""

    def sizes(self) -> dict[tuple[str, str], int]:
        """The sizes of all running guests' disks, by server and target; without busy guests."""

    def resize(self, server_id: str, target: str, size: int) -> None:
        """Resize the running guest's disk, and the file or image behind it."""

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        """See Guests."""

    def drop_secret(self, volume_id: str) -> None: ...

    def secrets(self) -> list[str]:
        """The volumes of all secrets that `keep_secret` made."""

    def define(self, domain: str) -> None: ...

    def undefine(self, server_id: str) -> None:
        """With libvirt's other files of the domain; a running domain becomes transient."""

    def start(self, server_id: str) -> None: ...

    def shutdown(self, server_id: str) -> None:
        """Ask the guest to shut itself down; returns at once."""

    def destroy(self, server_id: str) -> None:
        """Power it off."""

    def suspend(self, server_id: str) -> None: ...

    def resume(self, server_id: str) -> None: ...

    def migratable(self, server_id: str) -> tuple[str, str | None]:
        """Live and persistent XML, as `migrate` takes them."""

    def migrate(
        self, server_id: str, route: MigrationRoute, live: str, persistent: str | None
    ) -> None:
        """Migrate live with these two XMLs; returns at the end.

        If the guest was defined (`persistent`), it is then defined there and not here.
        """

    def migration(self, server_id: str) -> Job | None:
        """The outgoing migration in progress."""

    def abort_migration(self, server_id: str) -> None: ...

    def copy(self, server_id: str, target: str, disk: str) -> None:
        """Begin to mirror the live disk to another one, which exists; returns at once."""

    def copying(self, server_id: str, target: str) -> Job | None:
        """The disk's block job in progress: a copy, a pull or a commit."""

    def end_copy(self, server_id: str, target: str, *, switch: bool) -> None:
        """Switch to the copy, if it is ready; or abort the block job, whichever it is."""

    def snapshot(self, server_id: str, target: str, path: str) -> None:
        """Have the running guest write to this existing qcow2 file, above the present one; also in
        the persistent definition.
        """

    def pull(self, server_id: str, target: str, base: str | None) -> None:
        """Begin to merge all files above the one of this index (None: all) into the top file, which
        the guest writes to; returns at once.
        """

    def commit(self, server_id: str, target: str, top: str | None, base: str) -> None:
        """Begin to merge the files from index `top` down to `base` into the latter; returns at
        once.  `top` None: the top file; then `end_copy` ends it like a copy.
        """

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, when a guest appears, disappears or changes its state."""
