"""What a survey needs of host storage: the kernel's view, real or simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Thing:
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
    def things(self) -> Sequence[Thing]: ...

    def place(self, path: str) -> str:
        """The one name of what is at a path: of a device by whichever of its names."""

    def present(self, device: Mapping[str, Any]) -> bool | None:
        """Whether a device is there that connecting returned (Brick.connect); None: unknown."""

    def held(self, place: str) -> bool:
        """Whether something that is no guest holds what is there."""


class Storage(Protocol):
    """What host storage shows of itself: looked at alone, without forks and locks."""

    def look(self) -> StorageView:
        """Raises OSError, PortError."""
