"""What a survey needs of host storage: the kernel's view, real or simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from host_agent.shared.contract.ports import ConnectionInfo


@dataclass(frozen=True, kw_only=True)
class StorageThing:
    """Something that host storage shows (survey.StorageShown says which kinds, and their names).

    `places`: the devices and files by which its data is reached; `below`: a mount's directory.
    `held`: something that is no guest holds it.  `faulty`: it has no working path.
    """

    kind: str
    name: str
    places: frozenset[str] = frozenset()
    below: str | None = None
    held: bool = False
    faulty: bool = False

    def reaches(self, places: frozenset[str]) -> bool:
        """Whether the data at one of these places is reached by it."""
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
        """The one name of what is at a path: of a device by whichever of its names."""

    def names(self, path: str) -> frozenset[str]:
        """All by which the data there can be told, and what it is a part of; none, if nothing is
        there, or nobody can say what.
        """

    def is_shared(self, path: str) -> bool:
        """Whether it is a file of a share, or an image that QEMU opens itself."""

    def is_of(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether the device that connecting `info` returned is still that disk; None: unknown."""

    def size(self, path: str) -> int | None:
        """Of a device, in bytes; None: it is none, or not there."""

    def present(self, device: Mapping[str, Any], info: ConnectionInfo) -> bool | None:
        """Whether a device is there that connecting `info` returned; None: unknown."""

    def held(self, place: str) -> bool:
        """Whether something that is no guest holds what is there."""


class Storage(Protocol):
    """What host storage shows of itself: looked at alone, without forks and locks."""

    def look(self) -> StorageView:
        """Raises OSError, PortError."""

    def others(self, paths: Iterable[str]) -> frozenset[str]:
        """The devices at these paths that are another volume by now than the host takes them for.

        Storage itself is asked, so it may take as long as that does not answer.
        """
