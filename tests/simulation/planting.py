"""What is planted in a storm or in a cloud at rest: on what, as what it is found, what mends it.

Most kinds are planted on a group: a server apart with volumes of its own, of which nobody in the
storm asks for anything.  Its host loses power, is fenced and comes back as any other.  Some kinds
are planted on what the storm itself works with: that may take them over, or away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from handlers.drift.rows import Row
from handlers.requests.accept import AttachVolume, DetachVolume
from host_agent.libvirt import disk_xml
from host_agent.simulated.host_state import guest_state
from ledger.core.requests import Accepted
from ledger.trial.cinder.model.rows import DEFAULT_PROJECT
from tests.simulation import disk_plants, drift, plants
from tests.simulation.cloud import SHARED_BACKEND, Cloud
from tests.simulation.plants import Ground, NotNowError, Plant
from tests.simulation.storm import Storm
from tests.world import CONTEXT

#: The first of a storm's plants comes after so many ticks, each of the others so many later.
FIRST_AT, EVERY = 60, 30
#: Plants in one storm.
TOGETHER = 8


@dataclass(frozen=True)
class Group:
    """A server apart; `deleted` is one that was deleted; the server had `former` once."""

    server: str
    deleted: str
    volume: str
    former: str

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class Planted:
    """`ids`: what it is about.  `found_as`: its classes, by all that is there of it now."""

    kind: str
    ids: frozenset[str]
    found_as: Callable[[], list[str]]

    def owns(self, row: Row) -> bool:
        about = row.about
        told = {drift.tail(row), about.server_id, about.volume_id, about.attachment_id}
        return bool(told & self.ids)


# --- on groups ----------------------------------------------------------------------------------

#: What is found of a plant on a group, whose ground's new ids are given, after a storm.
Now = Callable[[Cloud, Group, set[str]], Iterable[str]]


def _copies(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """A host that was fenced is rid of what is not its own; one without power runs nothing."""
    del new
    found = cloud.folded.row("instances", group.server)
    has = {name: state.read()["guests"].get(group.server) for name, state in cloud.states.items()}
    there = {name: guest for name, guest in has.items() if guest}
    if there.keys() - {found and found["host"]}:
        yield "guest_elsewhere"
    if sum(guest["live"] is not None for guest in there.values()) > 1:
        yield "guest_twice"


def _of_deleted(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    del new
    if any(group.deleted in state.read()["guests"] for state in cloud.states.values()):
        yield "guest_of_deleted"


def _definition(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """What has lost power has only its definition."""
    del new
    yield "disk_definition_differs" if _runs(cloud, group) else "disk_missing"


def _read_only(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    del new
    yield "disk_readonly_differs"
    if _runs(cloud, group):
        yield "disk_definition_differs"


def _runs(cloud: Cloud, group: Group) -> bool:
    return any(guest["live"] is not None for guest in _guests(cloud, group))


def _strange(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """A guest that is made anew elsewhere gets what is connected there."""
    if any(path in guest for guest in _definitions(cloud, group) for path in new):
        yield "disk_source_differs"


def _too_small(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """What is started anew has all that there is."""
    del new
    sizes = (each for guest in _guests(cloud, group) for each in guest.get("sizes", {}).values())
    if _runs(cloud, group) and disk_plants.TOO_SMALL in sizes:
        yield "disk_size_differs"


def _unlabelled(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """By a definition alone it is not known what a device's name means; that of a file is."""
    del new
    for guest in _guests(cloud, group):
        disks = disk_xml.parse(guest["live"] or guest["persistent"]).disks
        sources = [
            disk_xml.short(disk.place) for disk in disks if disk.target == disk_plants.UNLABELLED
        ]
        if any(guest["live"] or not str(source).startswith("/dev/") for source in sources):
            yield "disk_unlabelled"


def _definitions(cloud: Cloud, group: Group) -> Iterator[str]:
    return (guest["live"] or guest["persistent"] for guest in _guests(cloud, group))


def _guests(cloud: Cloud, group: Group) -> Iterator[dict[str, Any]]:
    found = (state.read()["guests"].get(group.server) for state in cloud.states.values())
    return (guest for guest in found if guest)


def _record(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    del group
    yield from records_left(cloud, new)


def records_left(cloud: Cloud, ids: Iterable[str]) -> Iterator[str]:
    """What a record names may be gone; one that names nothing yet is of a connection."""
    for name, id_ in [(name, id_) for id_ in ids for name in cloud.records]:
        if record := cloud.records[name].get(id_):
            connected = cloud.states[name].read()["connected"].values()
            paths = {each["path"] for each in connected if each["driver"] != "rbd"}
            there = [device.get("path") in paths for device in record.devices.values()]
            yield "connection_left" if any(there) or not there else "record_left"


def _held(part: str, kind: str) -> Now:
    """Of a host's connections or secrets, which are gone with its power."""

    def now(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
        ids = new | {group.former}
        if any(state.read()[part].keys() & ids for state in cloud.states.values()):
            yield kind

    return now


def _undefined(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """With its host's power it is gone; whoever starts it defines it anew."""
    del new
    found = cloud.folded.row("instances", group.server) or {}
    state = cloud.states.get(found.get("host") or "")
    guest = state.read()["guests"].get(group.server) if state else None
    if guest is None:
        yield "guest_missing"
    elif guest["persistent"] is None:
        yield "guest_undefined"


def _power(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """Its host tells it with its next inventory, and then the ledger has it so."""
    del new
    found = cloud.folded.row("instances", group.server) or {}
    state = cloud.states.get(found.get("host") or "")
    guest = state.read()["guests"].get(group.server) if state else None
    if guest and guest["power_state"] != found["power_state"]:
        yield "power_differs"


def _paths(cloud: Cloud, group: Group, new: set[str]) -> Iterator[str]:
    """What is connected anew has all of its paths."""
    del group
    had = [each for state in cloud.states.values() for each in state.read()["connected"].values()]
    if any(each.get("faulty") and each["path"].rpartition("/")[2] in new for each in had):
        yield "paths_faulty"


@dataclass(frozen=True)
class Kind:
    """`changes`: the parts of `picture` that its repair may change, of its own; none: nobody
    mends it by itself.  `now` None: it is found as it was planted, whatever happens to its host.
    `passes`: it is over as soon as its host has told what it has.
    """

    plant: Plant
    changes: str = ""
    now: Now | None = None
    passes: bool = False


#: A guest that is off connects anew.
CORRECTED = "attachments volumes connected records secrets"
KINDS: dict[str, Kind] = {
    "reservation_unknown": Kind(plants.reservation_unknown, "attachments volumes"),
    "attachment_unknown": Kind(plants.attachment_unknown, "attachments volumes"),
    "owner_gone": Kind(plants.owner_gone, "attachments volumes"),
    "owner_unknown": Kind(plants.owner_unknown),
    "attachment_lost": Kind(
        plants.attachment_lost, "attachments volumes records connected secrets"
    ),
    "attachment_status_differs": Kind(plants.attachment_status_differs, "attachments volumes"),
    "attachment_unmapped": Kind(plants.attachment_unmapped),
    "legacy_mapping": Kind(plants.legacy_mapping),
    "attachment_host_differs": Kind(plants.attachment_host_differs, CORRECTED),
    "attachment_mountpoint_differs": Kind(plants.attachment_mountpoint_differs, CORRECTED),
    "attachment_mode_differs": Kind(plants.attachment_mode_differs),
    "volume_gone": Kind(plants.volume_gone),
    "volume_status_differs": Kind(plants.volume_status_differs, "volumes"),
    "volume_reset": Kind(plants.volume_reset),
    "volume_failed": Kind(plants.volume_failed),
    "volume_stuck": Kind(plants.volume_stuck),
    "volume_deleting": Kind(plants.volume_deleting),
    "volume_project_differs": Kind(plants.volume_project_differs),
    "volume_of_nobody": Kind(plants.volume_of_nobody, "volumes"),
    "guest_missing": Kind(plants.guest_missing, "attachments volumes records connected secrets"),
    "guest_elsewhere": Kind(plants.guest_elsewhere, now=_copies),
    "guest_twice": Kind(plants.guest_twice, now=_copies),
    "guest_of_deleted": Kind(plants.guest_of_deleted, "guests", _of_deleted),
    "guest_undefined": Kind(plants.guest_undefined, now=_undefined),
    "power_differs": Kind(plants.power_differs, now=_power, passes=True),
    "disk_missing": Kind(plants.disk_missing, "guests connected records secrets"),
    "disk_definition_differs": Kind(
        plants.disk_definition_differs, "guests connected records secrets", _definition
    ),
    "disk_unknown": Kind(plants.disk_unknown),
    "disk_device_differs": Kind(plants.disk_device_differs),
    "disk_readonly_differs": Kind(
        plants.disk_readonly_differs, "guests connected records secrets", _read_only
    ),
    "disk_source_differs": Kind(disk_plants.disk_source_differs, now=_strange),
    "disk_size_differs": Kind(disk_plants.disk_size_differs, now=_too_small),
    "disk_unlabelled": Kind(disk_plants.disk_unlabelled, now=_unlabelled),
    "connection_missing": Kind(plants.connection_missing),
    "connection_left": Kind(plants.connection_left, "records connected", _record),
    "record_left": Kind(plants.record_left, "records connected", _record),
    "storage_left": Kind(plants.storage_left, now=_held("connected", "storage_left")),
    "mount_unused": Kind(plants.mount_unused, now=_held("connected", "mount_unused")),
    "paths_faulty": Kind(plants.paths_faulty, now=_paths),
    "secret_left": Kind(plants.secret_left, "secrets", _held("secrets", "secret_left")),
    "secret_of_nobody": Kind(plants.secret_of_nobody, now=_held("secrets", "secret_left")),
}
#: On what the storm works with.
AMONG: dict[str, str] = {
    "reservation among": "attachments volumes",
    "attachment among": "attachments volumes",
    "record among": "records connected secrets",
}
#: Classes that are facts of the log: no look compares them, and storms make them themselves
#: (tests.simulation.test_left_to_people).
NOT_PLANTED = {
    "remnant": "an operator skips a step in a storm, which is over then: the rest would be broken",
    "operation_parked": "storms park operations, and retry until nothing is parked",
    "attachment_ended": "a storm has no Nova that is observed: only the observer finds it",
}


def kinds_of(seed: int) -> list[str]:
    """What is planted in a storm: in the first ones each kind once, then any."""
    every = [*KINDS, *AMONG]
    if seed * TOGETHER < len(every):
        return every[seed * TOGETHER :][:TOGETHER]
    return random.Random(f"kinds {seed}").sample(every, TOGETHER)


class PlantingStorm(Storm):
    """A storm in which drift comes about; `planted`: what of it, and on what."""

    def __init__(self, seed: int, ticks: int = 400, kinds: Sequence[str] | None = None) -> None:
        super().__init__(seed, ticks, by_hand=False)
        self.kinds = list(kinds_of(seed) if kinds is None else kinds)
        self.planted: list[Planted] = []
        self.groups: dict[str, Group] = {}
        self._draw = random.Random(f"plants {seed}")
        self._waiting = list(self.kinds)
        self._ticked = 0
        self._checked(self._make_groups)

    def _make_groups(self) -> None:
        cloud, random_ = self.cloud, self._draw
        for kind in filter(KINDS.__contains__, self.kinds):
            parts = ("server", "deleted", "volume", "former")
            ids = {part: str(uuid5(NAMESPACE_OID, f"{part} of {kind}")) for part in parts}
            group = self.groups[kind] = Group(**ids)
            cloud.apart |= group.ids
            for volume_id in (group.volume, group.former):
                driver = random_.choice(["iscsi", "local", SHARED_BACKEND])
                encrypted = random_.random() < 0.5
                # What is read-only in a definition stays so; what is not, is made so.
                readonly = True if kind == "disk_readonly_differs" else None
                told: dict[str, Any] = {"encrypted": encrypted, "readonly": readonly}
                cloud.cinder.add_volume(volume_id=volume_id, driver=driver, **told)
            name = random_.choice(sorted(cloud.states))
            with cloud.states[name].edit() as state:
                for id_ in (group.server, group.deleted):
                    state["guests"][id_] = guest_state(
                        server_id=id_, project_id=DEFAULT_PROJECT, devices=[]
                    )
            cloud.agents[name].register_again()
        self._come_to_rest()
        self._ask_for(self._attaches())
        self._ask_for(self._lets_go())

    def _ask_for(self, requests: Iterator[Accepted]) -> None:
        for _ in requests:
            pass
        self._come_to_rest()

    def _attaches(self) -> Iterator[Accepted]:
        for kind, group in self.groups.items():
            for volume_id in (group.volume, group.former):
                fleet = replace(self.cloud.fleet, legacy=partial(eq, kind, "legacy_mapping"))
                request = AttachVolume(server_id=group.server, volume_id=volume_id)
                key = f"attach {volume_id}"
                yield self.cloud.requests.attach(request, CONTEXT, fleet, key)

    def _lets_go(self) -> Iterator[Accepted]:
        requests, fleet = self.cloud.requests, self.cloud.fleet
        for group in self.groups.values():
            request = DetachVolume(server_id=group.server, volume_id=group.former)
            yield requests.detach(request, CONTEXT, fleet, f"detach {group.former}")
            yield requests.delete(group.deleted, CONTEXT, fleet, f"delete {group.deleted}")

    def _tick(self) -> None:
        self._ticked += 1
        begun = len(self.kinds) - len(self._waiting)
        if self._waiting and self._ticked >= FIRST_AT + begun * EVERY:
            self.plant_next()
        super()._tick()

    def plant_next(self) -> None:
        """The first of what waits that is possible now."""
        for kind in list(self._waiting):
            try:
                self._in_calm(kind)
            except NotNowError:
                continue
            self._waiting.remove(kind)
            return

    def _in_calm(self, kind: str) -> None:
        """Whoever does this has no trouble."""
        chance = self.cloud.chance
        calm, chance.calm = chance.calm, True
        try:
            planted = self._on_group(kind) if kind in KINDS else self._among(kind)
        finally:
            chance.calm = calm
        self.cloud.note(f"somebody plants {kind}: {sorted(planted.ids)}")
        self.planted.append(planted)

    def _on_group(self, kind: str) -> Planted:
        cloud, group, row = self.cloud, self.groups[kind], KINDS[kind]
        ground = Ground(cloud, frozenset({group.server, group.deleted}))
        told = sorted(row.plant(ground).elements())
        cloud.planted |= ground.new
        cloud.apart |= ground.new

        def now() -> list[str]:
            return told if row.now is None else sorted(row.now(cloud, group, ground.new))

        return Planted(kind=kind, ids=group.ids | ground.new, found_as=now)

    # ------------------------------------------------- on what the storm has

    def _among(self, kind: str) -> Planted:
        what = kind.removesuffix(" among")
        id_, now = getattr(self, f"_{what}")(str(uuid5(NAMESPACE_OID, f"{what} of nobody")))
        self.cloud.planted.add(id_)
        return Planted(kind=kind, ids=frozenset({id_}), found_as=now)

    def _in_cinder(self, volume_id: str, connector: dict[str, str] | None, name: str) -> Any:
        cloud = self.cloud
        cloud.cinder.add_volume(volume_id=volume_id)
        cloud.planted.add(volume_id)
        servers = {row["server_id"] for row in cloud.rows("instances")}
        server = min(servers - cloud.apart)
        row = cloud.cinder.attachment_create(volume_id, server, connector, "rw")
        if connector:
            cloud.cinder.attachment_complete(row.id)

        def now() -> list[str]:
            """An attach of the same server takes over a bare reservation (decision 0007)."""
            ours = {str(each.id) for each in cloud.attachments()}
            if row.id in ours or row.id not in cloud.cinder.attachments:
                return []
            found = cloud.folded.row("instances", server)
            return ["owner_gone" if found and found["deleted"] else name]

        return row.id, now

    def _reservation(self, volume_id: str) -> Any:
        return self._in_cinder(volume_id, None, "reservation_unknown")

    def _attachment(self, volume_id: str) -> Any:
        connector = {"host": min(self.cloud.states), "initiator": "iqn.p"}
        return self._in_cinder(volume_id, connector, "attachment_unknown")

    def _record(self, id_: str) -> Any:
        """Of an attachment that is gone: like one that some host has."""
        cloud = self.cloud
        records = [(n, r) for n, rs in sorted(cloud.records.items()) for r in rs.values()]
        known = [(n, r) for n, r in records if r.server_id not in cloud.apart]
        if not known:
            raise NotNowError
        name, record = known[0]
        cloud.records[name][id_] = replace(record, attachment_id=id_)
        return id_, lambda: list(records_left(cloud, {id_}))

    def rest(self) -> None:
        self._checked(self._come_to_rest)
