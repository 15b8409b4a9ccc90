"""A whole small world for the generic tests: ledger, Cinder, one host, all in memory.

The ledger's code is the real one (service, engine, flows, aggregates, verbs); the
store is a dictionary that keeps events as JSON, Cinder and the host are the
simulations that the contract tests hold to the real ones.

Every boundary a crash or a failure can happen at is a *point*: before and after
each call of a port, before and after each save.  Points are numbered as they are
met; a `Trouble` says what happens at one number.  So a test can walk through all
of them, and through all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid5

from aggregates.attachment import Attachment
from aggregates.base import Actor, Aggregate, Context, Event
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState
from aggregates.volume import Volume
from handlers.accept import AttachVolume, Contact, DetachVolume
from handlers.progress import lane_of, plan_of
from host_agent import verbs
from host_agent.context import Context as AgentContext
from host_agent.context import Waits
from host_agent.contract import ErrorKind, Guest, PowerState, Registration, Report, StepError
from host_agent.faults import Faults
from host_agent.ports import PortError
from host_agent.simulated import SimulatedBrick, SimulatedGuests
from host_agent.simulated_state import Store as HostState
from host_agent.simulated_state import broken_invariants, connected_paths, plugged
from ledger.application import ConflictError
from ledger.mapping import LedgerMapper
from ledger.service import Service
from ledger.simulation.cinder_direct import DirectCinder
from ledger.simulation.cinder_model import CinderModel

A = TypeVar("A", bound=Aggregate)
E = TypeVar("E", bound=Event)
T = TypeVar("T")

HOST = "compute-1"
NAMES = UUID("12345678-1234-5678-1234-567812345678")
SERVER = str(uuid5(NAMES, "server"))
CONTEXT = Context(
    actor=Actor(name="alice", user_id="u", project_id="p", roles=("member",)),
    request_id="req-test",
    cause="api",
)
#: More rounds than any operation needs; an operation that needs more goes in circles.
ROUNDS_MAX = 400


class Crash(BaseException):
    """The process is gone.  No `except Exception` of the code under test catches it."""


@dataclass
class Trouble:
    """What happens at which point: {number: mode}.  Numbers count as the points are met."""

    plan: dict[int, str] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        """Meet the next point; what is planned for it, if it is one of `modes`."""
        self.met.append(point)
        mode = self.plan.get(len(self.met) - 1)
        return mode if mode in modes else None


#: What can happen around a call of a port, and around a save.
CALL_MODES = (
    "retryable",
    "final",
    "unknown",  # it did not happen, but nobody knows
    "unknown_after",  # it did happen, but nobody knows
    "final_after",  # it did happen, at least half, and says that it did not
    "crash",
    "crash_after",
)
SAVE_MODES = ("crash", "crash_after", "conflict")


class Tripwire:
    """A port whose every call is a point."""

    def __init__(self, name: str, port: Any, trouble: Callable[[], Trouble]) -> None:
        self._name = name
        self._port = port
        self._trouble = trouble

    def __getattr__(self, call: str) -> Callable[..., Any]:
        method = getattr(self._port, call)

        def tripped(*args: Any, **kwargs: Any) -> Any:
            mode = self._trouble().at(f"{self._name}.{call}", CALL_MODES)
            if mode == "crash":
                raise Crash
            if mode in {"retryable", "final", "unknown"}:
                raise PortError(ErrorKind(mode), "injected", f"injected at {call}")
            answer = method(*args, **kwargs)
            if mode == "crash_after":
                raise Crash
            if mode in {"unknown_after", "final_after"}:
                kind = ErrorKind(mode.removesuffix("_after"))
                raise PortError(kind, "injected", f"injected after {call}")
            return answer

        return tripped


class MemoryStore:
    """The log as a dictionary: same rules, no database (ledger.service.Store)."""

    def __init__(self, trouble: Callable[[], Trouble]) -> None:
        self.streams: dict[UUID, list[Any]] = {}
        self.log: list[tuple[Any, Context]] = []
        self._mapper = LedgerMapper()
        self._trouble = trouble
        #: Called once, between a decision and its save: somebody else was faster.
        self.before_save: Callable[[], object] | None = None

    def load(self, kind: type[A], id: UUID) -> A:  # noqa: A002
        return kind.evolve(id, map(self._mapper.to_domain_event, self.streams.get(id, [])))

    def load_many(self, *wanted: tuple[type[Aggregate], UUID]) -> list[Any]:
        return [self.load(kind, id_) for kind, id_ in wanted]

    def save(self, *aggregates: Aggregate, context: Context) -> int:
        events = [event for aggregate in aggregates for event in aggregate.collect_events()]
        if not events:
            return 0
        if (faster := self.before_save) is not None:
            self.before_save = None
            faster()
        mode = self._trouble().at("save", SAVE_MODES)
        if mode == "crash":
            raise Crash
        if mode == "conflict":
            raise ConflictError
        draft = {id_: list(stored) for id_, stored in self.streams.items()}
        for event in events:
            stream = draft.setdefault(event.originator_id, [])
            if event.originator_version != len(stream) + 1:
                raise ConflictError
            stream.append(self._mapper.to_stored_event(event))
        self.streams = draft
        self.log += [(event, context) for event in events]
        if mode == "crash_after":
            raise Crash
        return len(self.log)

    def retrying(self, change: Callable[[], T]) -> T:
        for _ in range(5):
            try:
                return change()
            except ConflictError:
                continue
        return change()


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds

    now = __call__

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


class World:
    """One server on one host, and volumes; `trouble` may be changed while it runs."""

    def __init__(
        self,
        power_state: PowerState = PowerState.RUNNING,
        *,
        driver: str = "iscsi",
        volumes: int = 1,
    ) -> None:
        self.trouble = Trouble()
        self.clock = Clock()
        self.cinder = CinderModel(clock=self.clock)
        self.volumes = [str(uuid5(NAMES, f"volume-{n}")) for n in range(volumes)]
        for volume_id in self.volumes:
            self.cinder.add_volume(volume_id=volume_id, driver=driver)
        self.host = HostState(
            initial={"define": [{"server_id": SERVER, "power_state": power_state.value}]}
        )
        self.store = MemoryStore(lambda: self.trouble)
        self.power_state = power_state
        self.boot()
        self.register()

    def boot(self) -> None:
        """Both processes start anew, with nothing but what was durable."""
        cinder = Tripwire("cinder", DirectCinder(self.cinder), lambda: self.trouble)
        brick = SimulatedBrick(self.host, Faults(), HOST)
        guests = SimulatedGuests(self.host, Faults(), HOST)
        self.service = Service(self.store, cinder, self.clock, self.clock.wait)
        self.ports: dict[str, Any] = {
            "cinder": cinder,
            "brick": Tripwire("brick", brick, lambda: self.trouble),
            "guests": Tripwire("guests", guests, lambda: self.trouble),
        }

    def register(self) -> None:
        guest = Guest(
            server_id=SERVER,
            name="vm",
            power_state=self.power_state,
            devices=("vda",),
            project_id="p",
        )
        said = Registration(
            service_version=1, capabilities={"multiattach": True, "tag": True}, guests=(guest,)
        )
        self.service.register(HOST, said, CONTEXT)

    # ------------------------------------------------------------- requests

    def attach(self, volume_id: str | None = None, **more: Any) -> str:
        """Accept an attach; a client whose request meets a crash asks again with its key."""
        request = AttachVolume(server_id=SERVER, volume_id=volume_id or self.volumes[0], **more)
        return self._ask(lambda: self.service.attach(request, CONTEXT, alive, "attach"))

    def detach(self, volume_id: str | None = None) -> str:
        request = DetachVolume(server_id=SERVER, volume_id=volume_id or self.volumes[0])
        return self._ask(lambda: self.service.detach(request, CONTEXT, alive, "detach"))

    def _ask(self, request: Callable[[], Any]) -> str:
        for _ in range(ROUNDS_MAX):
            try:
                return str(request().operation_id)
            except Crash:
                self.boot()
            except PortError:
                continue
        raise AssertionError("the request was never answered")

    # -------------------------------------------------------------- running

    def run(self, operation_id: str) -> Operation:
        """Let dispatcher and agent work, restarting what crashes, until nothing moves."""
        for _ in range(ROUNDS_MAX):
            try:
                operation = self.operation(operation_id)
                if operation.state is not OperationState.RUNNING:
                    return operation
                waits = self.service.advance(operation_id)
                if waits is None or self.run_agent(operation_id):
                    continue
                assert waits.until is not None, "nothing is due and nobody works on it"
                self.clock.seconds = max(self.clock.seconds, waits.until)
            except Crash:
                self.boot()
        raise AssertionError(f"operation goes in circles after {self.trouble.plan}")

    def run_agent(self, operation_id: str, steps: int = 100) -> bool:
        """Run this host's commands, so many steps of each; whether there were any."""
        operation = self.operation(operation_id)
        runs = [run for run in operation.history.active.values() if run.host == HOST]
        for run in runs:
            ctx = AgentContext(clock=self.clock, waits=Waits(), **self.ports)
            owed = [
                s
                for s in run.steps
                if not operation.history.record(run.lane, s, undo=run.undo).settled
            ]
            for step in owed[:steps]:
                if not self._agent_step(operation_id, run, step, ctx):
                    break
        return bool(runs)

    def _agent_step(self, operation_id: str, run: Any, step: str, ctx: AgentContext) -> bool:
        operation = self.operation(operation_id)
        verb = plan_of(operation).verb(step, undo=run.undo)
        outputs: dict[str, Any] = {}
        error: StepError | None = None
        try:
            outputs = verbs.VERBS[verb](ctx, lane_of(operation, run.lane))  # type: ignore[index]
        except PortError as failure:
            error = failure.as_step_error()
        report = Report(
            operation_id=operation_id,
            run=run.number,
            epoch=run.epoch,
            step=step,
            took_ms=1,
            outputs=outputs,
            error=error,
        )
        return self.service.report(HOST, report, CONTEXT)[0]

    # -------------------------------------------------------------- looking

    def operation(self, operation_id: str) -> Operation:
        return self.store.load(Operation, UUID(operation_id))

    @property
    def instance(self) -> Instance:
        return self.store.load(Instance, UUID(SERVER))

    def mappings(self) -> list[BlockDeviceMapping]:
        ids = {
            e.originator_id
            for e, _ in self.store.log
            if isinstance(e, BlockDeviceMapping.MappingCreated)
        }
        found = [self.store.load(BlockDeviceMapping, id_) for id_ in ids]
        return [mapping for mapping in found if mapping.live]

    def attachments(self) -> list[Attachment]:
        ids = {
            e.originator_id
            for e, _ in self.store.log
            if isinstance(e, Attachment.AttachmentCreated)
        }
        found = [self.store.load(Attachment, id_) for id_ in ids]
        return [attachment for attachment in found if attachment.state != "deleted"]

    def summary(self) -> dict[str, Any]:
        """What is true across ledger, Cinder and host, without ids and times."""
        rows = [row for v in self.volumes for row in self.cinder.attachments_of(v)]
        return {
            "cinder": sorted(row.status for row in rows),
            "volumes": [self.cinder.volume(v).status for v in self.volumes],
            "ledger": sorted(str(a.state) for a in self.attachments()),
            "mappings": sorted(str(m.state) for m in self.mappings()),
            "plugged": sorted(map(str, plugged(self.host)[SERVER].values())),
            "connected": len(connected_paths(self.host)),
            "vm_state": str(self.instance.vm_state),
            "claims": len(self.instance.claims)
            + sum(self.store.load(Volume, UUID(v)).claimant is not None for v in self.volumes),
            "devices": len(self.instance.devices),
        }

    def wrong(self) -> list[str]:
        """Broken invariants (DESIGN D6, CVE-2023-2088), in words; only for a world at rest."""
        return [*broken_invariants(self.host), *self._disagreements()]

    def _disagreements(self) -> Iterator[str]:
        ledger = {str(a.id) for a in self.attachments()}
        cinder = {row.id for v in self.volumes for row in self.cinder.attachments_of(v)}
        if ledger != cinder:
            yield f"attachments: ledger has {ledger}, Cinder has {cinder}"
        bound = [m.created.volume_id for m in self.mappings() if m.created]
        if len(set(bound)) != len(bound):
            yield f"volumes bound twice: {bound}"
        given = {d.volume_id for d in self.instance.devices.values()}
        if given != set(bound):
            yield f"device names are given to {given}, mappings are of {bound}"


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
