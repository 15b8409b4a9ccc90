"""The few things asked of a hypervisor: one thin layer over libvirt, or its simulation.

`guests.py` decides; what stands behind this interface only does and tells.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from host_agent.contract import PowerState


class Trouble(StrEnum):
    """What a hypervisor's refusal means to us."""

    DOMAIN_MISSING = "domain_missing"
    DOMAIN_INACTIVE = "domain_inactive"  # live change asked of a guest that does not run
    DEVICE_MISSING = "device_missing"
    TARGET_TAKEN = "target_taken"
    NO_FREE_PORT = "no_free_port"
    BUSY = "busy"  # a job (migration, block copy) has the guest or the disk
    UNPLUGGING = "unplugging"  # asked before: the guest has not answered yet
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
    """A domain as it is now.  A transient one has no persistent XML."""

    server_id: str
    name: str
    power_state: PowerState
    live_xml: str | None
    persistent_xml: str | None


class Removal(Protocol):
    """Watches for the device-removed and the removal-failed event of one domain."""

    def wait(self, timeout_s: float) -> bool | None:
        """True: removed, False: the guest refused, None: no event in time."""


class Hypervisor(Protocol):
    """All calls block and raise HypervisorError only."""

    def domains(self) -> list[Domain]: ...

    def domain(self, server_id: str) -> Domain | None: ...

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None: ...

    def removal(self, server_id: str, alias: str | None) -> AbstractContextManager[Removal]:
        """Watch from now on, so that an event before `wait` is not missed."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, when a guest appeared, went, or changed state."""
