"""The world of the model: a small Cinder, and hosts with guests, as values that are cheap to copy.

Only what the rules need is in it.  The ports below are what the real code calls (the ledger's
effects, the agents' verbs); each call that changes something is a point at which a fault can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID, uuid5

from host_agent.shared.contract.messages import ErrorKind, Guest, PowerState
from host_agent.shared.contract.ports import (
    LATE_S,
    AttachmentView,
    Disk,
    DiskState,
    OldAttachment,
    PortError,
    VolumeView,
)
from host_agent.shared.contract.survey import (
    ConnectionShown,
    DiskShown,
    GuestShown,
    GuestsShown,
    Opened,
    Survey,
)
from host_agent.simulated.adapters import SimulatedView
from host_agent.storage.connection import target_digest
from host_agent.storage.records import Record
from tests.surveys import survey as a_survey

T = TypeVar("T")

NAMES = UUID("12345678-1234-5678-1234-567812345678")
HOSTS = ("host-1", "host-2")
SERVER = str(uuid5(NAMES, "server"))
DEFINITION = "<domain type='kvm'><name>guest</name></domain>"

#: Rules of the world itself, which no log can show; those of the log: handlers.engine.rules.
ONE_WRITER = "No two guests that run write to one volume."
NOTHING_UNDER_A_HOST = "No attachment is deleted while its host has the volume connected."
NOTHING_UNDER_A_GUEST = "No volume is given back to Cinder while a guest runs with it."
OWN_WORK = "Nothing refuses what dispatchers and hosts do of their own."
COMES_TO_REST = "Without further faults, everything comes to rest."


class Row(NamedTuple):
    """An attachment of Cinder's."""

    id: str
    volume_id: str
    server_id: str
    host: str | None = None
    status: str = "reserved"


class Late(NamedTuple):
    """A request to create one, whose sender has given up waiting."""

    volume_id: str
    server_id: str
    host: str | None


@dataclass(frozen=True)
class HostState:
    """`told`: what its agent has shown of its guests last; None: it has to register.

    `resumed`: runs of before its agent died.
    """

    on: bool = True
    guests: dict[str, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()
    records: dict[str, Record] = field(default_factory=dict)
    sent: frozenset[str] = frozenset()
    told: tuple[Any, ...] | None = None
    resumed: frozenset[tuple[str, int]] = frozenset()


@dataclass
class World:
    """Cinder and the hosts.  Every value in it is replaced, never changed."""

    volumes: dict[str, str]  # with their status
    rows: dict[str, Row] = field(default_factory=dict)
    late: tuple[Late, ...] = ()
    made: int = 0  # attachments so far
    hosts: dict[str, HostState] = field(default_factory=dict)
    broken: tuple[str, ...] = ()  # rules, with what has broken them
    by_hand: bool = False  # somebody has given a guest a disk, or moved it, past us

    def copy(self) -> World:
        copy = object.__new__(World)
        copy.__dict__.update(self.__dict__)
        return copy

    def host(self, name: str, **changes: Any) -> None:
        self.hosts = {**self.hosts, name: replace(self.hosts[name], **changes)}

    def attach(self, late: Late) -> Row:
        """Cinder's attachment_create; PortError if it refuses."""
        status = self.volumes[late.volume_id]
        same = any(
            (row.volume_id, row.server_id) == late[:2] for row in self.rows.values()
        ) and status in {"in-use", "reserved"}
        if status != "available" and not same:
            raise PortError(ErrorKind.FINAL, "refused", f"the volume is {status}")
        self.made += 1
        row = Row(str(uuid5(NAMES, f"attachment {self.made}")), late.volume_id, late.server_id)
        if late.host is not None:
            row = row._replace(host=late.host, status="attaching")
        self.put(row)
        return row

    def put(self, row: Row) -> None:
        self.rows = {**self.rows, row.id: row}
        self._settle(row.volume_id)

    def drop(self, row: Row, *, by_hand: bool = False) -> None:
        """Delete an attachment; the rules are asked of who did it."""
        self.rows = {id_: each for id_, each in self.rows.items() if id_ != row.id}
        self._settle(row.volume_id)
        if by_hand:
            return
        left = [each for each in self.rows.values() if each.volume_id == row.volume_id]
        has = {name for name, host in self.hosts.items() if row.volume_id in host.connected}
        if row.host in has - {each.host for each in left}:
            self.broken += (f"{NOTHING_UNDER_A_HOST}  {row.id} on {row.host}",)
        if not left and (writers := self.writers(row.volume_id)):
            self.broken += (f"{NOTHING_UNDER_A_GUEST}  {row.volume_id}: {writers}",)

    def _settle(self, volume_id: str) -> None:
        """Cinder's status follows the attachments."""
        found = {row.status for row in self.rows.values() if row.volume_id == volume_id}
        order = {"attached": "in-use", "attaching": "attaching", "reserved": "reserved"}
        status = next((to for of, to in order.items() if of in found), "available")
        self.volumes = {**self.volumes, volume_id: status}

    def writers(self, volume_id: str) -> list[tuple[str, str]]:
        """Guests that run with a disk of this volume, by host."""
        return [
            (name, server_id)
            for name, host in self.hosts.items()
            for server_id, (runs, disks) in host.guests.items()
            if host.on and runs and volume_id in disks
        ]

    def second_writers(self) -> list[str]:
        found = {volume_id: self.writers(volume_id) for volume_id in self.volumes}
        return [f"{ONE_WRITER}  {v}: {pairs}" for v, pairs in found.items() if len(pairs) > 1]

    def land(self) -> None:
        """All late requests are carried out, if Cinder takes them."""
        for late in self.late:
            self.carry_out(late)

    def carry_out(self, late: Late) -> None:
        self.late = tuple(each for each in self.late if each is not late)
        try:
            self.attach(late)
        except PortError:
            return


class Crash(BaseException):
    """The process is gone."""


class Paused(BaseException):
    """The process stands still before this call."""


#: What can happen to a call that changes something.
FAULTS = ("lost", "answer lost", "refused", "late", "dies")


@dataclass
class Wire:
    """The calls of one move: where a fault is, and where its process stands still.

    `answers`: those of before it stood still, which are given again; then `live` is called.
    """

    fault: tuple[int, str] | None = None
    pause_at: int | None = None
    answers: tuple[Any, ...] = ()
    live: Callable[[], None] = lambda: None
    changes: list[str] = field(default_factory=list)  # calls that change something, so far
    at: list[int] = field(default_factory=list)  # and their places among all calls
    given: list[Any] = field(default_factory=list)  # all answers, so far

    def call(self, name: str, do: Callable[[], T], late: Callable[[], None] | None = None) -> T:
        """A call; one that changes something has a name."""
        at = len(self.given)
        if at < len(self.answers):
            answer: T = self._again(self.answers[at])
            return answer
        if at == len(self.answers):
            self.live()
        if at == self.pause_at:
            raise Paused
        try:
            answer = self._call(name, do, late) if name else do()
        except PortError as error:
            self.given.append(error)
            raise
        self.given.append(answer)
        return answer

    def _again(self, answer: Any) -> Any:
        self.given.append(answer)
        if isinstance(answer, PortError):
            raise answer
        return answer

    def _call(self, name: str, do: Callable[[], T], late: Callable[[], None] | None) -> T:
        self.changes.append(name)
        self.at.append(len(self.given))
        mode = self.fault[1] if self.fault and self.fault[0] == len(self.changes) - 1 else None
        if mode == "late" and late is not None:
            late()
        if mode in {"lost", "late"}:
            raise PortError(ErrorKind.UNKNOWN, "injected", f"{name} got no answer")
        if mode == "refused":
            raise PortError(ErrorKind.FINAL, "injected", f"{name} was refused")
        answer = do()
        if mode == "dies":
            raise Crash
        if mode == "answer lost":
            raise PortError(ErrorKind.UNKNOWN, "injected", f"{name} got no answer")
        return answer


class Cinder:
    """The port `Cinder`, as far as the model's flows go."""

    def __init__(self, world: World, wire: Wire) -> None:
        self._world, self._wire = world, wire

    def new_flow(self) -> bool:
        return True

    def volume(self, volume_id: str) -> VolumeView:
        def look() -> VolumeView:
            if volume_id not in self._world.volumes:
                raise _missing(volume_id)
            return VolumeView(
                id=volume_id,
                status=self._world.volumes[volume_id],
                **_VOLUME,
            )

        return self._wire.call("", look)

    def attachment(self, attachment_id: str) -> AttachmentView:
        return self._wire.call("", lambda: _view(self._row(attachment_id)))

    def attachments(self, volume_id: str | None, server_id: str | None) -> list[AttachmentView]:
        def look() -> list[AttachmentView]:
            return [
                _view(row)
                for row in self._world.rows.values()
                if volume_id in {None, row.volume_id} and server_id in {None, row.server_id}
            ]

        return self._wire.call("", look)

    def old_attachments(self, volume_id: str) -> list[OldAttachment]:
        def look() -> list[OldAttachment]:
            rows = [row for row in self._world.rows.values() if row.volume_id == volume_id]
            return [
                OldAttachment(id=row.id, server_id=row.server_id, host_name=row.host)
                for row in rows
                if row.status == "attached"
            ]

        return self._wire.call("", look)

    def attachment_create(
        self,
        volume_id: str,
        server_id: str,
        connector: dict[str, Any] | None = None,
        mode: str = "rw",
    ) -> AttachmentView:
        wanted = Late(volume_id, server_id, connector["host"] if connector else None)

        def late() -> None:
            self._world.late += (wanted,)

        return self._wire.call("attachment_create", lambda: _view(self._world.attach(wanted)), late)

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> AttachmentView:
        def update() -> AttachmentView:
            row = self._row(attachment_id)._replace(host=connector["host"], status="attaching")
            self._world.put(row)
            return _view(row)

        return self._wire.call("attachment_update", update)

    def attachment_complete(self, attachment_id: str) -> None:
        def complete() -> None:
            self._world.put(self._row(attachment_id)._replace(status="attached"))

        self._wire.call("attachment_complete", complete)

    def attachment_delete(self, attachment_id: str) -> list[AttachmentView] | None:
        def delete() -> list[AttachmentView] | None:
            row = self._world.rows.get(attachment_id)
            if row is None:
                return None
            self._world.drop(row)
            left = self._world.rows.values()
            return [_view(each) for each in left if each.volume_id == row.volume_id]

        return self._wire.call("attachment_delete", delete)

    def begin_detaching(self, volume_id: str) -> None:
        self._set("begin_detaching", volume_id, "in-use", "detaching")

    def roll_detaching(self, volume_id: str) -> None:
        self._set("roll_detaching", volume_id, "detaching", "in-use")

    def unreserve(self, volume_id: str) -> None:
        self._set("unreserve", volume_id, "attaching", "in-use")

    def _set(self, name: str, volume_id: str, before: str, after: str) -> None:
        def act() -> None:
            if self._world.volumes[volume_id] == before:
                self._world.volumes = {**self._world.volumes, volume_id: after}

        self._wire.call(name, act)

    def _row(self, attachment_id: str) -> Row:
        row = self._world.rows.get(attachment_id)
        if row is None:
            raise _missing(attachment_id)
        return row


_VOLUME: dict[str, Any] = {
    "size_gb": 1,
    "shared_targets": False,
    "service_uuid": "service",
    "bootable": False,
    "multiattach": False,
    "encrypted": False,
    "availability_zone": None,
    "project_id": "p",
    "name": None,
    "migration_status": None,
    "readonly": False,
}


def _missing(id_: str) -> PortError:
    return PortError(ErrorKind.FINAL, "not_found", f"{id_} does not exist")


def _view(row: Row) -> AttachmentView:
    info = _info(row.volume_id) if row.host else {}
    return AttachmentView(
        id=row.id,
        volume_id=row.volume_id,
        server_id=row.server_id,
        status=row.status,
        connection_info=info,
        mode="rw",
    )


class Host:
    """The ports `Brick` and `Guests` of a host: its guests, and what it has connected."""

    def __init__(self, world: World, name: str, wire: Wire) -> None:
        self._world, self._name, self._wire = world, name, wire

    @property
    def state(self) -> HostState:
        return self._world.hosts[self._name]

    # --- Brick

    def connector(self) -> dict[str, Any]:
        return {"host": self._name}

    def connect(self, info: dict[str, Any]) -> dict[str, Any]:
        volume_id = info["target_iqn"]
        self._change("connect", connected=lambda it: it.connected | {volume_id})
        return {"type": "block", "path": _path(volume_id), "format": "raw"}

    def size(self, source: dict[str, Any]) -> int | None:
        return None

    def disconnect(self, info: dict[str, Any], device: dict[str, Any] | None = None) -> None:
        volume_id = info["target_iqn"]
        disks = [disks for _, disks in self.state.guests.values()]
        if any(volume_id in each for each in disks):
            self._world.broken += (f"{NOTHING_UNDER_A_GUEST}  {volume_id} on {self._name}",)
        self._change("disconnect", connected=lambda it: it.connected - {volume_id})

    # --- Guests

    def inventory(self) -> list[Guest]:
        return inventory(self.state)

    def survey(self) -> GuestsShown:
        opened = [
            Opened(
                server_id=server_id,
                target=_target(disk),
                serial=disk,
                live=runs,
                sources=(_path(disk),),
            )
            for server_id, (runs, disks) in self.state.guests.items()
            for disk in disks
        ]
        return GuestsShown(guests=(), opened=tuple(opened))

    def look(self) -> SimulatedView:
        """The port `Storage`: what it has connected, each by its path."""
        connected = {volume_id: _path(volume_id) for volume_id in self.state.connected}
        return SimulatedView(
            {
                target_digest(_info(id_)): {"path": path, "driver": "iscsi"}
                for id_, path in connected.items()
            }
        )

    def power(self, server_id: str) -> PowerState | None:
        guest = self.state.guests.get(server_id)
        return guest and (PowerState.RUNNING if guest[0] else PowerState.SHUTDOWN)

    def process(self, server_id: str) -> bool:
        return self.state.guests.get(server_id, (False,))[0]

    def disk(self, server_id: str, serial: str) -> DiskState:
        runs, disks = self.state.guests.get(server_id, (False, ()))
        if serial not in disks:
            return DiskState(live=None, persistent=None, running=runs)
        name = _target(serial)
        live = name if runs else None
        return DiskState(live=live, persistent=name, running=runs, sources=(_path(serial),))

    def plug(self, server_id: str, disk: Disk) -> DiskState:
        self._disks("plug", server_id, lambda disks: {*disks, disk.serial})
        return self.disk(server_id, disk.serial)

    def unplug(self, server_id: str, serial: str) -> DiskState:
        if server_id in self.state.guests:
            self._disks("unplug", server_id, lambda disks: {*disks} - {serial})
        return self.disk(server_id, serial)

    def spawn(self, server_id: str, definition: str, disks: Any, *, running: bool) -> PowerState:
        if not self.process(server_id):
            guest = (running, tuple(sorted(disk.serial for disk in disks)))
            self._change("spawn", guests=lambda it: {**it.guests, server_id: guest})
        return self.power(server_id) or PowerState.NOSTATE

    def start(self, server_id: str) -> PowerState:
        return self._power("start", server_id, runs=True)

    def stop(self, server_id: str, *, force: bool) -> PowerState:
        return self._power("stop", server_id, runs=False)

    def remove(self, server_id: str) -> None:
        self._change("remove", guests=lambda it: _without(it.guests, server_id))

    def migrate(self, server_id: str, destination: dict[str, Any], disks: Any, watch: Any) -> None:
        there = destination["host"]
        if server_id in self._world.hosts[there].guests and server_id not in self.state.guests:
            return
        if not self.process(server_id) or not self._world.hosts[there].on:
            raise PortError(ErrorKind.FINAL, "migration_failed", f"{server_id} did not move")
        self._wire.call("migrate", lambda: move_guest(self._world, server_id, self._name, there))

    def stay(self, server_id: str, destination: dict[str, Any]) -> bool:
        return server_id in self.state.guests

    def arrived(self, server_id: str) -> bool:
        return server_id in self.state.guests

    def _power(self, name: str, server_id: str, *, runs: bool) -> PowerState:
        if server_id not in self.state.guests:
            return PowerState.NOSTATE
        guest = (runs, self.state.guests[server_id][1])
        self._change(name, guests=lambda it: {**it.guests, server_id: guest})
        return self.power(server_id) or PowerState.NOSTATE

    def _disks(self, name: str, server_id: str, change: Callable[[Any], set[str]]) -> None:
        if server_id not in self.state.guests:
            raise PortError(ErrorKind.FINAL, "guest_not_found", f"{server_id} is not here")
        runs, disks = self.state.guests[server_id]
        guest = (runs, tuple(sorted(change(disks))))
        self._change(name, guests=lambda it: {**it.guests, server_id: guest})

    def _change(self, name: str, **changes: Callable[[HostState], Any]) -> None:
        """What changes nothing is no point for a fault."""
        after = {what: change(self.state) for what, change in changes.items()}
        if any(getattr(self.state, what) != value for what, value in after.items()):
            self._wire.call(name, lambda: self._world.host(self._name, **after))


def move_guest(world: World, server_id: str, here: str, there: str) -> None:
    """By a migration: it runs there, with its disks, and is neither running nor defined here."""
    guest = world.hosts[here].guests[server_id]
    world.host(there, guests={**world.hosts[there].guests, server_id: guest})
    world.host(here, guests=_without(world.hosts[here].guests, server_id))


def _without(known: dict[str, T], key: str) -> dict[str, T]:
    return {each: value for each, value in known.items() if each != key}


def _info(volume_id: str) -> dict[str, Any]:
    return {"driver_volume_type": "iscsi", "target_iqn": volume_id}


def _path(volume_id: str) -> str:
    return f"/dev/{volume_id}"


def _target(serial: str) -> str:
    return f"vd{'bcdefgh'[VOLUMES.index(serial)]}"


VOLUMES = tuple(str(uuid5(NAMES, f"volume {number}")) for number in range(3))


def inventory(host: HostState) -> list[Guest]:
    return [
        Guest(
            server_id=server_id,
            name="guest",
            power_state=PowerState.RUNNING if runs else PowerState.SHUTDOWN,
            devices=tuple(map(_target, disks)),
            volumes=disks,
            project_id="p",
            definition=DEFINITION,
        )
        for server_id, (runs, disks) in host.guests.items()
    ]


def survey(host: HostState, epoch: int) -> Survey:
    """As a look asks for it."""
    shown = [
        GuestShown(
            server_id=guest.server_id,
            power_state=guest.power_state,
            disks=tuple(_shown(serial, guest.power_state) for serial in guest.volumes),
        )
        for guest in inventory(host)
    ]
    records = [
        ConnectionShown(
            attachment_id=record.attachment_id,
            volume_id=record.volume_id,
            server_id=record.server_id,
            serial=record.serial,
            present=record.volume_id in host.connected,
        )
        for record in host.records.values()
    ]
    return a_survey(boot_id="boot", epoch=epoch, guests=tuple(shown), connections=tuple(records))


def _shown(serial: str, power: PowerState) -> DiskShown:
    live = _target(serial) if power is PowerState.RUNNING else None
    return DiskShown(serial=serial, live=live, persistent=_target(serial))


class Clock:
    """Time for those who wait for late requests: after LATE_S all of them have landed."""

    def __init__(self, world: World, now: float = 0.0) -> None:
        self._world, self._now, self._waited = world, now, 0.0

    def now(self) -> float:
        return self._now

    __call__ = now

    def wait(self, seconds: float) -> None:
        self._waited += seconds
        if self._waited >= LATE_S:
            self._world.land()
