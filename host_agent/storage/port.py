"""What a survey needs of host storage: the kernel's view, real or simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from host_agent.shared.contract.ports import ConnectionInfo


@dataclass(frozen=True, kw_only=True)
class StorageThing:
    """An object of host storage (survey.StorageShown has the kinds and their names).

    `places`: the devices and files with its data; `below`: a mount's directory.  `held`: something
    other than a guest uses it.  `faulty`: it has no working path.
    """

    kind: str
    name: str
    places: frozenset[str] = frozenset()
    below: str | None = None
    held: bool = False
    faulty: bool = False

    def reaches(self, places: frozenset[str]) -> bool:
        """Whether it has the data at one of these places."""
        if not places.isdisjoint(self.places):
            return True
        return self.below is not None and any(
            place.startswith(f"{self.below}/") for place in places
        )


class StorageView(Protocol):
    """Host storage as it was at one moment."""

    @property
    def things(self) -> Sequence[StorageThing]: ...

    def place(self, path: str) -> str:
        """The canonical name of a path: the same for all names of a device."""

    def names(self, path: str) -> frozenset[str]:
        """All identifying names of what is at a path; none if it is missing or unknown."""

    def is_shared(self, path: str) -> bool:
        """Whether it is a file on a share, or an image that QEMU opens itself."""

    def is_of(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether the device that connecting `info` returned is still that disk; None: unknown."""

    def size(self, path: str) -> int | None:
        """The size of a device in bytes; None: not a device, or not there."""

    def present(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether a device is there that connecting `info` returned; None: unknown."""

    def held(self, place: str) -> bool:
        """Whether something other than a guest uses what is there."""


class Storage(Protocol):
    """Reads the state of host storage, without forks and locks."""

    def look(self) -> StorageView:
        """Raises OSError, PortError."""

    def others(self, paths: Iterable[str]) -> frozenset[str]:
        """The devices at these paths that are now another volume than the kernel has recorded.

        Storage itself is asked, so the call may block if it does not answer.
        """
