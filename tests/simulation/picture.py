"""All there is in Cinder and on hosts at a moment, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from host_agent.storage import connection

if TYPE_CHECKING:
    from tests.simulation.planting import PlantingStorm


@dataclass
class Picture:
    """All there is in Cinder and on hosts: (part, where, which) -> (whose, what).

    Whose: the kinds of what was planted, and "" of anything else.
    """

    storm: PlantingStorm
    seen: dict[tuple[str, str, str], tuple[frozenset[str], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cinder = self.storm.cloud.cinder
        for row in cinder.attachments.values():
            told = (row.status, row.host, row.mode, row.mountpoint)
            self._add("attachments", "", row.id, {row.id, row.instance, row.volume_id}, told)
        for volume in cinder.volumes.values():
            ids = {volume.id, *(row.id for row in cinder.attachments_of(volume.id))}
            if volume.status != "deleting":
                self._add("volumes", "", volume.id, ids, volume.status)
        for name, state in self.storm.cloud.states.items():
            self._see_host(name, state.read())

    def _see_host(self, name: str, seen: dict[str, Any]) -> None:
        for server_id, guest in seen["guests"].items():
            self._add("guests", name, server_id, {server_id}, guest)
        users: dict[str, set[str]] = {}
        for id_, record in self.storm.cloud.records[name].items():
            ids = {id_, record.server_id, record.volume_id}
            self._add("records", name, id_, ids, "")
            for held in (record.volume_id, *map(connection.target_digest, record.infos)):
                users.setdefault(held, set()).update(self._whose(ids))
        for part in ("connected", "secrets"):
            for id_, told in seen[part].items():
                whose = frozenset(users.get(id_) or self._whose({id_}))
                self.seen[part, name, id_] = whose, told

    def _add(self, part: str, where: str, which: str, ids: set[Any], told: Any) -> None:
        self.seen[part, where, which] = self._whose(ids), told

    def _whose(self, ids: set[Any]) -> frozenset[str]:
        return frozenset(p.kind for p in self.storm.planted if p.ids & ids) or frozenset({""})

    def changed(self, now: Picture) -> dict[tuple[str, str, str], str]:
        """What differs, by part, place and thing: whose it was, or is."""
        before, after = self.seen, now.seen
        return {
            key: "+".join(sorted((before.get(key) or after[key])[0]))
            for key in before | after
            if (key in before and before[key][1]) != (key in after and after[key][1])
        }
