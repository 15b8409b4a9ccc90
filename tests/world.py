"""A whole small world for the generic tests: ledger, Cinder, two hosts, all in memory.

The ledger's code is the real one (service, engine, flows, aggregates, verbs); the
store is a dictionary that keeps events as JSON, Cinder and the host are the
simulations that the contract tests hold to the real ones.

`tests.memory` has its parts: the points where a crash or a failure can happen, the store.
"""

from __future__ import annotations

import copy
import copyreg
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID, uuid5

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.base import Actor, Event, EventContext
from aggregates.finding import Finding, FindingState
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import ActiveRun, Operation, OperationState
from aggregates.volume import Volume
from handlers.requests.accept import AttachVolume, DetachVolume, SwapVolume
from handlers.requests.actions import ActOnServer
from handlers.requests.build import BootDisk, BuildServer
from handlers.requests.guards import Contact
from handlers.results.presence import (
    SHOW_GUESTS,
    SHOW_VOLUMES,
    STOP_REPAIRS,
    OthersShown,
    ShowingFinding,
)
from host_agent.reporting import Reporting, Verdict, report_of
from host_agent.shared.contract.messages import (
    SERVICE_VERSION,
    Command,
    ErrorKind,
    PowerState,
    Registration,
    StepResult,
)
from host_agent.shared.contract.ports import PortError
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests, SimulatedStorage
from host_agent.simulated.host_state import HOSTS, SCHEME, HostState
from host_agent.storage.keys import KeyManagers
from host_agent.storage.records import Record
from host_agent.verbs.context import RunContext as AgentContext
from host_agent.verbs.context import Waits
from ledger.core.requests import Fleet, Requests
from ledger.core.service import Service
from ledger.trial.cinder.model.model import CinderModel
from tests.agreement import disagreements
from tests.commands import command_of, registered, run_command
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged, read_only
from tests.memory import Clock, Crash, MemoryStore, Tripwire, Trouble

E = TypeVar("E", bound=Event)

HOST, OTHER = "compute-1", "compute-2"
NAMES = UUID("12345678-1234-5678-1234-567812345678")
SERVER = str(uuid5(NAMES, "server"))
IMAGE = str(uuid5(NAMES, "image"))
FIXED_KEY = "c0ffee" * 8  # of all encrypted volumes
CONTEXT = EventContext(
    actor=Actor(name="alice", user_id="u", project_id="p", roles=("member",)),
    request_id="req-test",
    cause="api",
    sender={"address": "192.0.2.7", "agent": "tests"},
)
#: More rounds than any operation needs; an operation that needs more goes in circles.
ROUNDS_MAX = 400
#: What a world keeps when all its processes end, beside the store.
DURABLE = ("clock", "cinder", "hosts", "records", "dead", "volumes")

copyreg.pickle(type(threading.RLock()), lambda _lock: (threading.RLock, ()))


class World:
    """One server on the first of two hosts, and volumes; `trouble` may change while it runs."""

    def __init__(
        self,
        power_state: PowerState | None = PowerState.RUNNING,
        *,
        driver: str = "iscsi",
        volumes: int = 1,
        multiattach: bool = False,
        legacy: bool = False,
        encrypted: bool | None = None,
    ) -> None:
        """`encrypted`: all volumes or none; by default every second."""
        self.trouble = Trouble()
        self.clock = Clock()
        self.cinder = CinderModel(clock=self.clock)
        self.legacy = legacy
        self.dead: set[str] = set()  # hosts whose agents do nothing
        self.acting: str | None = None  # the host whose agent is doing something just now
        self.alone = False  # agents report each result by itself, as old ones do
        self.server_id = SERVER
        self.volumes = [str(uuid5(NAMES, f"volume-{n}")) for n in range(volumes)]
        for number, volume_id in enumerate(self.volumes):
            self.cinder.add_volume(
                volume_id=volume_id,
                driver=driver,
                multiattach=multiattach,
                bootable=True,
                encrypted=number % 2 == 1 if encrypted is None else encrypted,
            )
        guest = {"server_id": SERVER, "project_id": "p", "devices": []}
        define = [{**guest, "power_state": power_state.value}] if power_state else []
        self.hosts = {HOST: HostState(initial={"define": define}), OTHER: HostState()}
        self.host = self.hosts[HOST]
        self.records: dict[str, dict[str, Record]] = {name: {} for name in self.hosts}
        self.sent: dict[str, set[str]] = {name: set() for name in self.hosts}
        self.store = MemoryStore(lambda: self.trouble)
        self.boot()
        for name in self.hosts:
            self.register(name)

    def boot(self) -> None:
        """All processes start anew, with nothing but what was durable."""
        HOSTS.update(self.hosts)
        self.known_at = len(self.store.log)  # what was begun until then may have been given up
        direct = DirectCinder(self.cinder)
        cinder = self._tripwire("cinder", direct)
        self.service = Service(self.store, cinder, self.clock, self.clock.wait)
        self.requests = Requests(self.store, cinder, self.clock)
        self.agents = {name: self._agent(name, cinder) for name in self.hosts}
        self.ports = self.agents[HOST]

    def copy(self) -> World:
        """Another world in this state, whose processes have just been started."""
        other = copy.copy(self)
        vars(other).update(pickle.loads(self._durable()))
        other.trouble = Trouble()
        other.host = other.hosts[HOST]
        other.store = self.store.copy(lambda: other.trouble)
        other.boot()
        return other

    def _durable(self) -> bytes:
        return pickle.dumps({name: getattr(self, name) for name in DURABLE}, -1)

    def _tripwire(self, name: str, port: Any) -> Any:
        return Tripwire(name, port, lambda: self.trouble)

    def _agent(self, name: str, cinder: Any) -> dict[str, Any]:
        state = self.hosts[name]
        return {
            "host": name,
            "cinder": cinder,
            "brick": self._tripwire("brick", SimulatedBrick(state, Faults(), name)),
            "guests": self._tripwire("guests", SimulatedGuests(state, Faults(), name)),
            "users": Users(self, name),
            "storage": SimulatedStorage(state, Faults(), name),
            "keys": self._tripwire("keys", KeyManagers(FIXED_KEY)),
            "records": self.records[name],
            "sent": self.sent[name],
        }

    def register(self, name: str = HOST, service_version: int = SERVICE_VERSION) -> dict[str, Any]:
        """The host's agent says what it can and what runs there; what it is to release."""
        guests = SimulatedGuests(self.hosts[name], Faults(), name).inventory()
        said = Registration(
            service_version=service_version,
            capabilities={
                "multiattach": True,
                "tag": True,
                "migration": {"uri": SCHEME + name, "address": name},
            },
            guests=tuple(guests),
            connections=tuple(self.records[name]),
        )
        told = registered(self.service, name, said, CONTEXT, self.open_ids)
        shown = {guest.server_id for guest in guests}
        instance = self.instance
        if name in instance.places | set(instance.elsewhere) and self.server_id not in shown:
            self.service.lost_guest(self.server_id, name, CONTEXT)
        return {"unknown": told.unknown, "again": told.again}

    @property
    def fleet(self) -> Fleet:
        return Fleet(
            contact=alive,
            legacy=lambda: self.legacy,
            shown=self._shown,
            unfenced=lambda: [name for name in self.hosts if not self._host(name).fenced],
        )

    def _shown(self, server_id: str, volume_ids: Sequence[str]) -> OthersShown:
        """The open findings that show the server's guest, or one of the volumes."""
        ids = {event.originator_id for event in events(self, Finding.DriftFound)}
        findings = [self.store.load(Finding, id_) for id_ in sorted(ids)]
        showing = [
            ShowingFinding.of({"finding_id": each.id, "differs": each.differs, **vars(found)})
            for each in findings
            if each.state is not FindingState.OVER and (found := each.found)
            if (found.drift_class in SHOW_GUESTS and found.server_id == server_id)
            or (found.drift_class in SHOW_VOLUMES | STOP_REPAIRS and found.volume_id in volume_ids)
        ]
        in_doubt = [name for name in self.hosts if self._host(name).in_doubt]
        return OthersShown(findings=showing, in_doubt=in_doubt)

    def _host(self, name: str) -> Host:
        return self.store.load(Host, host_uuid(name))

    # ------------------------------------------------------------- requests

    def attach(self, volume_id: str | None = None, **more: Any) -> str:
        """Accept an attach; a client whose request meets a crash asks again with its key."""
        volume_id = volume_id or self.volumes[0]
        request = AttachVolume(server_id=self.server_id, volume_id=volume_id, **more)
        key = f"attach {volume_id} {len(self.store.log)}"
        return self._ask(lambda: self.requests.attach(request, CONTEXT, self.fleet, key))

    def detach(self, volume_id: str | None = None, **more: Any) -> str:
        volume_id = volume_id or self.volumes[0]
        request = DetachVolume(server_id=self.server_id, volume_id=volume_id, **more)
        key = f"detach {volume_id} {len(self.store.log)}"
        return self._ask(lambda: self.requests.detach(request, CONTEXT, self.fleet, key))

    def swap(self, old: str, new: str, *, by_cinder: bool = False) -> str:
        request = SwapVolume(
            server_id=self.server_id, volume_id=old, new_volume_id=new, by_cinder=by_cinder
        )
        key = f"swap {len(self.store.log)}"
        return self._ask(lambda: self.requests.swap(request, CONTEXT, self.fleet, key))

    def act(self, flow: str, **more: Any) -> str:
        """Ask for something that concerns the whole server."""
        request = ActOnServer(server_id=self.server_id, flow=flow, **more)
        key = f"{flow} {len(self.store.log)}"
        return self._ask(lambda: self.requests.act(request, CONTEXT, self.fleet, key))

    def delete(self) -> str:
        key = f"delete {len(self.store.log)}"
        return self._ask(lambda: self.requests.delete(self.server_id, CONTEXT, self.fleet, key))

    def build(self, *disks: BootDisk, host: str = HOST) -> str:
        """Build a server of these disks; it is the world's server from then on."""
        request = BuildServer(name="built", host=host, disks=disks, project_id="p")
        key = f"build {len(self.store.log)}"
        operation_id = self._ask(lambda: self.requests.build(request, CONTEXT, self.fleet, key))
        self.server_id = str(uuid5(UUID(operation_id), "server"))
        return operation_id

    def fence(self, name: str) -> None:
        """The host is dead, and an operator says so."""
        self.dead.add(name)
        self.service.fence(name, "lost power", "BMC says off", CONTEXT)
        for operation_id in self.open_operations():
            self.service.on_host_fenced(str(operation_id), name, CONTEXT)

    def _ask(self, request: Callable[[], Any]) -> str:
        for _ in range(ROUNDS_MAX):
            try:
                return str(request().operation_id)
            except Crash:
                self.boot()
            except PortError as error:
                if error.code == "not_found":  # a volume that is gone: no trouble that passes
                    raise
        raise AssertionError("the request was never answered")

    # -------------------------------------------------------------- running

    def run(self, operation_id: str) -> Operation:
        """Let dispatcher and agents work, restarting what crashes, until nothing moves.

        Agents of `dead` hosts do nothing.
        """
        for _ in range(ROUNDS_MAX):
            try:
                operation = self.operation(operation_id)
                if operation.state is not OperationState.RUNNING:
                    return operation
                waits = self.service.advance(operation_id)
                overtaken = len(self.store.streams[operation.id]) > operation.version
                if waits is None or overtaken or self._run_agents(operation_id):
                    continue
                if waits.until is None and self.dead:
                    return operation
                assert waits.until is not None, "nothing is due and nobody works on it"
                self.clock.seconds = max(self.clock.seconds, waits.until)
            except Crash:
                self._take_over(operation_id)
        raise AssertionError(f"operation goes in circles after {self.trouble.plan}")

    def _take_over(self, operation_id: str) -> None:
        """As the next life of a dispatcher does before it goes on (ledger.core.dispatcher)."""
        for _ in range(ROUNDS_MAX):
            self.boot()
            with suppress(Crash):
                self.service.on_dispatcher_lost(operation_id)
                return

    def settle(self) -> None:
        """Do all that is due."""
        while running := self.running():
            for operation_id in running:
                self.run(str(operation_id))

    def done(self, operation_id: str) -> World:
        """Run it to its end, which has to be a good one."""
        operation = self.run(operation_id)
        assert operation.outcome == "completed", operation.first_error
        return self

    def _run_agents(self, operation_id: str) -> bool:
        names = [name for name in self.hosts if name not in self.dead]
        worked = [self.run_agent(operation_id, name) for name in names]
        return any(worked)

    def run_agent(self, operation_id: str, host: str | None = None, steps: int = 100) -> bool:
        """Run a host's commands (None: any host's), so many steps each; whether there were any."""
        operation = self.operation(operation_id)
        active = operation.history.active.values()
        runs = [r for r in active if r.host is not None and host in {None, r.host}]
        for run in runs:
            command = command_of(operation, run, self._started_at(operation, run))
            first = command.first and not self._resumed(command)
            ports = self.agents[run.host or ""]
            command = command.seeing(self.clock())
            ctx = AgentContext(clock=self.clock, waits=Waits(), first=first, **ports)
            reporting = Reporting(self._ledger_of(command, run.host or ""), self.clock)
            self.acting = run.host
            try:
                run_command(command, ctx, reporting, steps, alone=self.alone)
            finally:
                self.acting = None
        return bool(runs)

    def _ledger_of(
        self, command: Command, host: str
    ) -> Callable[[tuple[StepResult, ...], str | None], Verdict]:
        """Whom the host's agent reports a command's results to."""

        def send(results: tuple[StepResult, ...], _changed: str | None) -> Verdict:
            report = report_of(command, results, resumed=self._resumed(command))
            try:
                goes_on, _ = self.service.report(host, report, CONTEXT)
            except (errors.StaleEpochError, errors.StaleReportError):
                return Verdict.STALE
            return Verdict.CONTINUE if goes_on else Verdict.STOP

        return send

    def _resumed(self, command: Command) -> bool:
        return command.position <= self.known_at

    def _started_at(self, operation: Operation, run: ActiveRun) -> int:
        log = self.store.log
        return next(
            position
            for position in range(len(log), 0, -1)  # it is one of the last
            if isinstance(event := log[position - 1][0], Operation.RunStarted)
            and (event.originator_id, event.run) == (operation.id, run.number)
        )

    # -------------------------------------------------------------- looking

    def operation(self, operation_id: str) -> Operation:
        return self.store.load(Operation, UUID(operation_id))

    @property
    def instance(self) -> Instance:
        return self.store.load(Instance, UUID(self.server_id))

    def running(self) -> list[UUID]:
        """Operations that nobody has to look at."""
        found = self.open_operations()
        return [id_ for id_ in found if self.store.load(Operation, id_).state == "running"]

    def open_operations(self) -> list[UUID]:
        """Operations that are not at their end."""
        ids = [event.originator_id for event in events(self, Operation.OperationStarted)]
        return [id_ for id_ in ids if self.store.load(Operation, id_).state != "finished"]

    def open_ids(self) -> list[str]:
        return [str(id_) for id_ in self.open_operations()]

    def mappings(self) -> list[BlockDeviceMapping]:
        ids = {event.originator_id for event in events(self, BlockDeviceMapping.MappingCreated)}
        found = [self.store.load(BlockDeviceMapping, id_) for id_ in ids]
        return [mapping for mapping in found if mapping.live]

    def attachments(self) -> list[Attachment]:
        ids = {event.originator_id for event in events(self, Attachment.AttachmentCreated)}
        found = [self.store.load(Attachment, id_) for id_ in ids]
        return [each for each in found if each.state not in {"deleted", "renamed"}]

    def summary(self) -> dict[str, Any]:
        """What is true across ledger, Cinder and hosts, without ids and times."""
        rows = [row for v in self.known_volumes() for row in self.cinder.attachments_of(v)]
        return {
            "cinder": sorted(row.status for row in rows),
            "told": sorted({f"{row.host} {row.mountpoint}" for row in rows if row.host}),
            "volumes": sorted(self.cinder.volume(v).status for v in self.known_volumes()),
            "ledger": sorted(
                f"{a.state} {a.may_be_connected and a.host}" for a in self.attachments()
            ),
            "mappings": sorted(f"{m.state} {m.device_name}" for m in self.mappings()),
            "plugged": {name: self._plugged(host) for name, host in self.hosts.items()},
            "readonly": {name: read_only(host) for name, host in self.hosts.items()},
            "guests": {
                name: {id_: guest["power_state"] for id_, guest in host.read()["guests"].items()}
                for name, host in self.hosts.items()
            },
            "connected": {name: len(connected_paths(host)) for name, host in self.hosts.items()},
            "secrets": {name: len(host.read()["secrets"]) for name, host in self.hosts.items()},
            "files": {name: len(host.read()["files"]) for name, host in self.hosts.items()},
            "images": sorted(v.image_id for v in self.cinder.volumes.values() if v.image_id),
            "snapshots": sorted(each.status for each in self.cinder.snapshots.values()),
            "sizes": sorted(self.cinder.volume(v).size for v in self.known_volumes()),
            "vm_state": str(self.instance.vm_state),
            "host": self.instance.host,
            "claims": len(self.instance.claims)
            + sum(len(self.store.load(Volume, UUID(v)).claims) for v in self.volumes),
            "devices": len(self.instance.devices),
        }

    def known_volumes(self) -> list[str]:
        """The volumes that exist in Cinder now."""
        return [volume.id for volume in self.cinder.listed_volumes()]

    @staticmethod
    def _plugged(host: HostState) -> list[str]:
        return sorted(str(where) for disks in plugged(host).values() for where in disks.values())

    def wrong(self) -> list[str]:
        """Broken invariants (decision 0026, CVE-2023-2088), in words; only for a world at rest."""
        broken = [
            f"{name}: {what}"
            for name, host in self.hosts.items()
            for what in broken_invariants(host)
            if name not in self.dead
        ]
        return [*broken, *disagreements(self)]


class Users:
    """The ledger's answer to an agent's question (ports.VolumeUsers), without HTTP."""

    def __init__(self, world: World, host: str) -> None:
        self._world = world
        self._host = host

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        return self._world.service.others(self._host, volume_id, attachment_id)


def alive(host: str) -> Contact:
    return Contact(alive=True, since="now")


def events(world: World, kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    return [event for event, _ in world.store.log if isinstance(event, kind)]


def first_point(call: str, scenario: Callable[[World], str] = World.attach) -> int:
    """The number of the first point of this name when nothing goes wrong."""
    world = World()
    if scenario is not World.attach:
        world.run(world.attach())
    world.trouble = Trouble()
    world.run(scenario(world))
    return world.trouble.met.index(call)


class Broken:
    """Every call of one name fails until `heal`ed, or while a condition holds."""

    def __init__(self, world: World, call: str, kind: ErrorKind = ErrorKind.UNKNOWN) -> None:
        self.while_: Callable[[], bool] = lambda: True
        self.calls = 0
        port, _, name = call.partition(".")
        tripwire = world.ports[port]
        real = getattr(tripwire, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            if not self.while_():
                return real(*args, **kwargs)
            self.calls += 1
            raise PortError(kind, "injected", f"{call} is broken")

        setattr(tripwire, name, broken)

    def heal(self) -> None:
        self.while_ = lambda: False
