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
    """What a hypervisor's refusal means to us."""

    DOMAIN_MISSING = "domain_missing"
    DOMAIN_INACTIVE = "domain_inactive"  # live change asked of a guest that does not run
    DEVICE_MISSING = "device_missing"
    TARGET_TAKEN = "target_taken"
    NO_FREE_PORT = "no_free_port"
    BUSY = "busy"  # a job (migration, block copy) has the guest or the disk
    DOMAIN_ACTIVE = "domain_active"  # asked to start a guest that runs
    UNPLUGGING = "unplugging"  # asked before: the guest has not answered yet
    SECRET_MISSING = "secret_missing"  # noqa: S105 - or its value
    UNREACHABLE = "unreachable"  # no connection: it did not get the request
    LOST = "lost"  # the connection broke during the call: it may have happened
    OTHER = "other"


class HypervisorError(Exception):
    """The hypervisor refused or could not be asked; `trouble` says what it means."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain as it is now.  A transient one has no persistent XML.

    `stranded`: a migration holds it paused, and nobody else.  Either it is still coming
    in, or its going out broke off at a point where libvirt does not dare let it run.
    """

    server_id: str
    name: str
    power_state: PowerState
    live_xml: str | None
    persistent_xml: str | None
    stranded: bool = False


@dataclass(frozen=True, kw_only=True)
class MigrationRoute:
    """A way for a live migration: the other hypervisor, and where the data is sent to.

    `shared`: all that the guest writes is known to be the same data there.
    """

    uri: str
    address: str | None
    shared: bool


@dataclass(frozen=True)
class Job:
    """A migration or a copy under way."""

    done_bytes: int
    total_bytes: int


class Removal(Protocol):
    """Watches for the device-removed and the removal-failed event of one domain."""

    def wait(self, timeout_s: float) -> bool | None:
        """True: removed, False: the guest refused, None: no event in time."""


class Hypervisor(Protocol):
    """All calls block and raise HypervisorError only."""

    def domains(self) -> list[Domain]: ...

    def domain(self, server_id: str) -> Domain | None: ...

    def process(self, server_id: str) -> bool:
        """See Guests."""

    def domain_at(self, uri: str, server_id: str) -> Domain | None:
        """The domain at another host, for looking only."""

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def removal(self, server_id: str, alias: str | None) -> AbstractContextManager[Removal]:
        """Watch from now on, so that an event before `wait` is not missed."""

    def update(self, server_id: str, disk: str) -> None:
        """In the persistent definition, put this disk in place of the one of its name."""

    def size(self, server_id: str, target: str) -> int:
        """What the running guest has of this disk, in bytes."""

    def sizes(self) -> dict[tuple[str, str], int]:
        """The same of all disks of all running guests, by server and target; of a guest that is
        busy with something else nothing is said.
        """

    def resize(self, server_id: str, target: str, size: int) -> None:
        """Give the running guest so many bytes; a file or image behind the disk follows."""

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        """See Guests."""

    def drop_secret(self, volume_id: str) -> None: ...

    def secrets(self) -> list[str]:
        """The volumes of all secrets that `keep_secret` made."""

    def define(self, domain: str) -> None: ...

    def undefine(self, server_id: str) -> None:
        """With all that is kept beside a definition; a domain that runs becomes transient."""

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
        """Live, by these two XMLs; returns when it has ended.

        It is defined there and no longer here, if it was (`persistent`).
        """

    def migration(self, server_id: str) -> Job | None:
        """The migration away from here that is under way."""

    def abort_migration(self, server_id: str) -> None: ...

    def copy(self, server_id: str, target: str, disk: str) -> None:
        """Begin to mirror the live disk to that one, which exists; returns at once."""

    def copying(self, server_id: str, target: str) -> Job | None:
        """What is under way with the disk: a copy, a pull or a commit."""

    def end_copy(self, server_id: str, target: str, *, switch: bool) -> None:
        """Switch to the copy, if it is ready; or stay, at any time, which ends whatever it is."""

    def snapshot(self, server_id: str, target: str, path: str) -> None:
        """Let the running guest write to this file, a qcow2 one that exists, above the present
        one; in the persistent definition, too.
        """

    def pull(self, server_id: str, target: str, base: str | None) -> None:
        """Begin to put all that is above the file of this index (None: everything) into the one
        that is written to; returns at once.
        """

    def commit(self, server_id: str, target: str, top: str | None, base: str) -> None:
        """Begin to put the files from the index `top` down to `base` into the latter; returns at
        once.  `top` None: the one that is written to, as a copy that `end_copy` ends.
        """

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, when a guest appeared, went, or changed state."""
