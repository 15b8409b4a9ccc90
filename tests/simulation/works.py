"""What Cinder does with volumes by itself: backups and extensions, at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from host_agent.shared.contract.ports import PortError
from ledger.log.application import ConflictError
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.rows import StoredVolume
from tests.memory import Crash
from tests.world import CONTEXT

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

by_id = attrgetter("id")


class Works:
    """What is under way, and how each of it ends."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._ends: dict[str, Callable[[], None]] = {}

    def begin_or_end(self) -> None:
        """Somebody has a volume backed up or extended; or that comes to its end."""
        cloud, draw = self._cloud, self._cloud.chance.random
        if self._ends and draw.random() < 0.5:
            self._ends.pop(draw.choice(sorted(self._ends)))()
            return
        volume = draw.choice(sorted(cloud.known_volumes().values(), key=by_id))
        free = not volume.migrating and volume.id not in self._ends
        free = free and not cloud.cinder.has_snapshots(volume.id)  # a file below cannot grow
        if not free or volume.status not in {"available", "in-use"}:
            return
        cloud.note(f"cinder: works on {volume.id[:8]}, which is {volume.status}")
        if draw.random() < 0.5:
            cinder_work.begin_backup(volume, force=True)
            self._ends[volume.id] = partial(cinder_work.end_backup, volume)
        else:
            cinder_work.begin_extension(volume, attached=True)
            self._ends[volume.id] = partial(self._extended, volume)

    def _extended(self, volume: StoredVolume) -> None:
        """Cinder tells each server that has the volume, once, and asks for no answer."""
        cloud = self._cloud
        cinder_work.end_extension(cloud.cinder, volume, volume.size + 1)
        for row in list(cloud.cinder.attachments_of(volume.id)):
            try:
                cloud.requests.grow(row.instance or "", volume.id, CONTEXT)
            except (Crash, PortError, ConflictError) as trouble:
                cloud.note(f"cinder: {volume.id[:8]} has grown: {type(trouble).__name__}")
                cloud.uneven.add(volume.id)

    def end_all(self) -> None:
        while self._ends:
            self._ends.popitem()[1]()

    def forget_muddled(self) -> None:
        """Cinder wrote over what it does with the volume (decision 0040): `in-use` or `reserved`,
        when a move completed or deleted one of two attachments, or `attaching`, when an update
        came late or of a move.  An administrator puts it right.
        """
        for volume_id in sorted(self._ends):
            volume = self._cloud.cinder.volumes.get(volume_id)
            if (
                volume
                and volume.status in {"in-use", "reserved", "attaching"}
                and self._cloud.cinder.attachments_of(volume_id)
            ):
                self._cloud.note(f"cinder: does not know that it works on {volume_id[:8]}")
                del self._ends[volume_id]
