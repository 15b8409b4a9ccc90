"""What can happen in the model: a table of moves, and what each of them costs.

A move is a row: who does what, what it costs, on what it can be done, and how.  Those that call
Cinder or a host are tried as they are, with each fault at each call that changes something, and, if
it is a dispatcher's, with the process standing still before each such call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import methodcaller
from types import SimpleNamespace
from typing import Any, NamedTuple

from aggregates import errors
from aggregates.finding import Finding, FindingState
from aggregates.operation import Operation
from handlers.drift.classes import BY_NAME
from handlers.engine.verbs import VERBS
from handlers.requests.accept import AttachVolume, DetachVolume
from handlers.requests.actions import ActOnServer
from handlers.requests.repair import RepairDrift
from host_agent.leftovers import LeftoversRelease
from host_agent.reporting import Reporting, Verdict, report_of
from host_agent.shared.contract.messages import SERVICE_VERSION, Registration, Release
from host_agent.shared.contract.ports import PortError
from host_agent.storage.keys import NO_KEYS
from host_agent.verbs.context import RunContext, Waits
from tests.commands import command_of, registered, run_command
from tests.model import looking
from tests.model.state import CONTEXT, LATER_S, Ledger, Left, Pause, State
from tests.model.words import Order, shown
from tests.model.world import (
    FAULTS,
    OWN_WORK,
    SERVER,
    Cinder,
    Clock,
    Crash,
    Host,
    Late,
    Paused,
    Wire,
    inventory,
    move_guest,
)

FREE, FAULT, REQUEST, ACT = Left(0, 0, 0), Left(1, 0, 0), Left(0, 1, 0), Left(0, 0, 1)


class Impossible(Exception):  # noqa: N818 - it is no error that the move cannot be made
    """Nothing comes of this move here."""


@dataclass(frozen=True)
class Move:
    """`on`: what it can be done on, for each a move of its own.

    `machine`: done by itself, sooner or later, without a person.  `calls`: it calls Cinder or a
    host, so a fault can meet it; `pauses`: it is a dispatcher's, which can stand still.
    """

    name: str
    cost: Left
    on: Callable[[State], Iterable[Any]]
    do: Callable[[State, Any, Wire], None]
    machine: bool = False
    calls: bool = False
    pauses: bool = False


class Step(NamedTuple):
    """A move that was made: what people read, the state after it, and whether machines do it."""

    text: str
    state: State
    machine: bool
    free: bool


def steps(state: State, moves: Iterable[Move]) -> Iterator[Step]:
    """All that can happen next."""
    for move in moves:
        if any(has < needs for has, needs in zip(state.left, move.cost, strict=True)):
            continue
        for thing in list(move.on(state)):
            yield from _made(move, state, thing)


def _made(move: Move, state: State, thing: Any) -> Iterator[Step]:
    clean = Wire()
    text = move.name.format(shown(thing, state))
    after = _try(move, state, thing, clean, move.cost)
    if after is not None:
        yield Step(text, after, move.machine, move.cost == FREE)
    if not move.calls or state.left.faults < 1:
        return
    for number, call in enumerate(clean.changes):
        for mode in FAULTS if call == "attachment_create" else [f for f in FAULTS if f != "late"]:
            after = _try(move, state, thing, Wire(fault=(number, mode)), FAULT)
            if after is not None:
                yield Step(f"{text}; {call}: {mode}", after, False, False)
        if move.pauses:
            at = clean.at[number]
            after = _try(move, state, thing, Wire(pause_at=at), FAULT)
            if after is not None:
                yield Step(f"{text}; the process stands still before {call}", after, False, False)


def _try(move: Move, state: State, thing: Any, wire: Wire, cost: Left) -> State | None:
    after = state.copy()
    after.left = Left(*(has - needs for has, needs in zip(state.left, cost, strict=True)))
    try:
        move.do(after, thing, wire)
    except Impossible:
        return None
    except (errors.DomainError, PortError) as refusal:
        if not move.machine:
            return None
        after.world.broken += (f"{OWN_WORK}  {type(refusal).__name__}: {refusal}",)
    return after


# --- dispatchers ---------------------------------------------------------------------------------


def _due(state: State) -> Iterator[str]:
    for operation in state.operations("running"):
        if str(operation.id) not in state.taken:
            yield str(operation.id)


def _dispatch(state: State, operation_id: str, wire: Wire) -> None:
    """One thing that the operation needs of the ledger; what waits for its time is due by now."""
    state.now += LATER_S
    before, ledger = state.known, Ledger(state, wire)
    operation = state.get(Operation, operation_id)
    own = next((run for run in operation.history.active.values() if run.host is None), None)
    try:
        waits = ledger.service.advance(operation_id)
    except Crash:
        state.taken |= {operation_id}
        return
    except Paused:
        assert own is not None, "only an effect calls anybody"
        pause = Pause(operation_id, own.number, before, tuple(wire.given), state.now)
        state.paused += (pause,)
        state.taken |= {operation_id}
        return
    if waits is not None and state.known is before and not wire.changes:
        raise Impossible


def _take_over(state: State, operation_id: str, wire: Wire) -> None:
    """Its lease is over, and what it has sent has landed (ledger.core.dispatcher)."""
    state.world.land()
    state.taken -= {operation_id}
    Ledger(state, wire).service.on_dispatcher_lost(operation_id)


def _go_on(state: State, pause: Pause, wire: Wire) -> None:
    """A process that stood still goes on where it stood."""
    state.paused = tuple(each for each in state.paused if each is not pause)
    wire.answers = pause.answers
    ledger = Ledger(state, wire, pause)
    wire.live = ledger.store.live
    ledger.service.advance(pause.operation_id)
    if not any(each.operation_id == pause.operation_id for each in state.paused):
        state.taken -= {pause.operation_id}


def _is_dead(state: State, pause: Pause, _: Wire) -> None:
    state.paused = tuple(each for each in state.paused if each is not pause)


# --- hosts ---------------------------------------------------------------------------------------


def _orders(state: State) -> Iterator[Order]:
    """What agents may work on: hosts' runs, in the host's present epoch."""
    for operation in state.operations("running"):
        for run in operation.history.active.values():
            if run.host is None or not state.world.hosts[run.host].on:
                continue
            host = state.host(run.host)
            only_asks = run.verb is not None and VERBS[run.verb].asks_only
            shut = host.fenced or (host.suspect and not only_asks)
            if run.epoch == host.epoch and not shut:
                yield Order(run.host, str(operation.id), run.number)


def _work(state: State, order: Order, wire: Wire) -> None:
    """An agent does the next step of a run, and tells what came of it."""
    name, operation_id, number = order
    operation, here = state.get(Operation, operation_id), state.world.hosts[name]
    run = next(r for r in operation.history.active.values() if r.number == number)
    service = Ledger(state, Wire()).service
    records, sent = dict(here.records), set(here.sent)
    state.now += LATER_S
    clock: Any = Clock(state.world, state.now)
    host: Any = Host(state.world, name, wire)
    cinder: Any = Cinder(state.world, wire)
    ctx = RunContext(
        cinder=cinder,
        brick=host,
        guests=host,
        storage=host,
        host=name,
        users=SimpleNamespace(others=lambda v, a: service.others(name, v, a)),
        clock=clock,
        waits=Waits(),
        keys=NO_KEYS,
        records=records,
        sent=sent,
    )
    command = command_of(operation, run, 0)
    resumed = (operation_id, number) in here.resumed

    def send(results: Any, _changed: str | None) -> Verdict:
        try:
            goes_on, _ = service.report(name, report_of(command, results, resumed=resumed), CONTEXT)
        except (errors.StaleEpochError, errors.StaleReportError):
            return Verdict.STALE
        return Verdict.CONTINUE if goes_on else Verdict.STOP

    try:
        run_command(command, ctx, Reporting(send, clock), 1)
    except Crash:
        begun = {(operation_id, number)}
        state.world.host(name, resumed=here.resumed | begun, told=None)
    state.world.host(name, records=records, sent=frozenset(sent))


def _untold(state: State) -> Iterator[str]:
    for name, host in state.world.hosts.items():
        if host.on and host.told != _shows(state, name):
            yield name


def _shows(state: State, name: str) -> tuple[Any, ...]:
    """What its agent would tell; a host that is suspect tells its connections, too."""
    host = state.world.hosts[name]
    records = tuple(host.records) if state.host(name).suspect else ()
    return state.host(name).epoch, tuple(host.guests.items()), records


def _register(state: State, name: str, wire: Wire) -> None:
    """Its agent says what runs there; if it is to release something, it does."""
    service, host = Ledger(state, wire).service, state.world.hosts[name]
    said = Registration(
        service_version=SERVICE_VERSION,
        capabilities={
            "multiattach": True,
            "migration": {"uri": f"simulated:{name}", "address": name},
        },
        guests=tuple(inventory(host)),
        connections=tuple(host.records),
    )
    taken = registered(service, name, said, CONTEXT, lambda: _open(state))
    expected = state.instance.places | set(state.instance.elsewhere)
    if name in expected and SERVER not in host.guests:
        service.lost_guest(SERVER, name, CONTEXT)
    release = Release(*taken.host.leftovers, unknown=taken.unknown)
    if taken.host.suspect and release:
        return _clear(state, name, release)
    state.world.host(name, told=None if taken.again else _shows(state, name))
    return None


def _clear(state: State, name: str, release: Release) -> None:
    wire, records = Wire(), dict(state.world.hosts[name].records)
    host: Any = Host(state.world, name, wire)
    cinder: Any = Cinder(state.world, wire)
    service = Ledger(state, Wire()).service
    users = SimpleNamespace(others=lambda v, a: service.others(name, v, a))
    ports: Any = SimpleNamespace(
        cinder=cinder, guests=host, brick=host, records=records, users=users
    )
    locks: Any = SimpleNamespace(hold=lambda *_: nullcontext())
    clock: Any = Clock(state.world)
    LeftoversRelease(ports, locks, clock).clear(release)
    state.world.host(name, records=records, told=None)


def _goes_down(state: State, name: str, _: Wire) -> None:
    """It loses power: its guests are off, and nothing is connected when it comes back."""
    guests = {id_: (False, of[1]) for id_, of in state.world.hosts[name].guests.items()}
    known = frozenset(
        (str(operation.id), run.number)
        for operation in state.operations("running")
        for run in operation.history.active.values()
        if run.host == name
    )
    state.world.host(name, on=False, guests=guests, connected=frozenset(), told=None, resumed=known)


def _comes_back(state: State, name: str, _: Wire) -> None:
    state.world.host(name, on=True)


# --- Cinder, and somebody's hand -----------------------------------------------------------------


def _lands(state: State, late: Late, _: Wire) -> None:
    state.world.carry_out(late)


def _guests(state: State) -> Iterator[tuple[str, str]]:
    """Guests that run, and where they could go."""
    for name, host in state.world.hosts.items():
        others = [each for each, other in state.world.hosts.items() if each != name and other.on]
        if host.on and host.guests.get(SERVER, (False,))[0]:
            yield from ((name, other) for other in others)


def _between_runs(state: State) -> Iterator[tuple[str, str]]:
    """Not while a host is at work for the server: within a run nobody asks (decision 0088)."""
    operations = state.operations("running")
    if not any(run.host for each in operations for run in each.history.active.values()):
        yield from _guests(state)


def _moved_by_hand(state: State, way: tuple[str, str], wire: Wire) -> None:
    """Both agents have told so by now: they look at their guests twice a minute."""
    move_guest(state.world, SERVER, *way)
    state.world.by_hand = True
    for name in way:
        _register(state, name, wire)


def _killed_by_hand(state: State, way: tuple[str, str], _: Wire) -> None:
    disks = state.world.hosts[way[0]].guests[SERVER][1]
    guests = {**state.world.hosts[way[0]].guests, SERVER: (False, disks)}
    state.world.host(way[0], guests=guests)


def _reserved_by_hand(state: State, volume_id: str, _: Wire) -> None:
    state.world.attach(Late(volume_id, SERVER, None))


def _attached_by_hand(state: State, volume_id: str, _: Wire) -> None:
    """With Cinder's client and virsh, where the guest runs.

    What a host has connected without a record and without a guest no repair can see: left out.
    """
    name, disks = next(
        (name, host.guests[SERVER][1])
        for name, host in state.world.hosts.items()
        if host.on and host.guests.get(SERVER, (False,))[0]
    )
    row = state.world.attach(Late(volume_id, SERVER, name))
    state.world.put(row._replace(status="attached"))
    here = state.world.hosts[name]
    guests = {**here.guests, SERVER: (True, tuple(sorted({*disks, volume_id})))}
    state.world.host(name, guests=guests)
    state.world.by_hand = True


# --- users and operators -------------------------------------------------------------------------


def _volumes(state: State) -> Iterable[str]:
    return state.world.volumes


def _free(state: State) -> Iterable[str]:
    """Volumes that nobody has, if there is a guest that runs."""
    taken = {row.volume_id for row in state.world.rows.values()}
    return [each for each in state.world.volumes if each not in taken and any(_guests(state))]


def _server(_: State) -> Iterable[str]:
    return [SERVER]


def _attach(state: State, volume_id: str, wire: Wire) -> None:
    ledger, request = Ledger(state, wire), AttachVolume(server_id=SERVER, volume_id=volume_id)
    ledger.requests.attach(request, CONTEXT, ledger.fleet)


def _detach(state: State, volume_id: str, wire: Wire) -> None:
    ledger, request = Ledger(state, wire), DetachVolume(server_id=SERVER, volume_id=volume_id)
    ledger.requests.detach(request, CONTEXT, ledger.fleet)


def _delete(state: State, _: Any, wire: Wire) -> None:
    ledger = Ledger(state, wire)
    ledger.requests.delete(SERVER, CONTEXT, ledger.fleet)


def _act(flow: str, *, moves: bool = False) -> Callable[[State, Any, Wire], None]:
    def do(state: State, _: Any, wire: Wire) -> None:
        other = next((h for h in state.world.hosts if h != state.instance.host), None)
        request = ActOnServer(server_id=SERVER, flow=flow, destination=other if moves else None)
        ledger = Ledger(state, wire)
        ledger.requests.act(request, CONTEXT, ledger.fleet)

    return do


def _hosts(**wanted: bool) -> Callable[[State], Iterator[str]]:
    def on(state: State) -> Iterator[str]:
        for name, host in state.world.hosts.items():
            is_ = {"up": host.on, "fenced": state.host(name).fenced}
            if all(is_[what] is value for what, value in wanted.items()):
                yield name

    return on


def _fence(state: State, name: str, wire: Wire) -> None:
    """Who fences has seen that it is off; the operations hear of it."""
    service = Ledger(state, wire).service
    service.fence(name, "it is off", "seen", CONTEXT)
    for operation in state.operations("running", "parked"):
        service.on_host_fenced(str(operation.id), name, CONTEXT)


def _unfence(state: State, name: str, wire: Wire) -> None:
    Ledger(state, wire).service.change_host(name, methodcaller("unfence", "it is well"), CONTEXT)
    state.world.host(name, told=None)


def _parked(state: State) -> Iterator[str]:
    return (str(each.id) for each in state.operations("parked"))


def _open(state: State) -> Iterator[str]:
    return (str(each.id) for each in state.operations("running", "parked"))


def _by_operator(act: str) -> Callable[[State, str, Wire], None]:
    def do(state: State, operation_id: str, wire: Wire) -> None:
        Ledger(state, wire).service.act(operation_id, act, "seen", CONTEXT)

    return do


def _look(state: State, _: Any, wire: Wire) -> None:
    if not looking.look(state, Ledger(state, wire).store):
        raise Impossible


def _confirmed(state: State) -> Iterator[tuple[str, str]]:
    for finding in state.all(Finding):
        drift = finding.found and BY_NAME[finding.found.drift_class]
        if drift and finding.state is FindingState.CONFIRMED and finding.repairing is None:
            for repair in filter(None, (drift.repair, drift.or_else)):
                yield str(finding.id), repair


def _repair(state: State, what: tuple[str, str], wire: Wire) -> None:
    ledger = Ledger(state, wire)
    request = RepairDrift(finding_id=what[0], reason="seen", repair=what[1])
    ledger.requests.repair(request, CONTEXT, ledger.fleet)


_BY_MACHINES: dict[str, Any] = {"machine": True, "calls": True}
MOVES = (
    Move("a dispatcher works on {}", FREE, _due, _dispatch, pauses=True, **_BY_MACHINES),
    Move(
        "another dispatcher takes {} over",
        FREE,
        lambda state: state.taken,
        _take_over,
        machine=True,
    ),
    Move(
        "the dispatcher that stood still goes on: {}",
        FREE,
        lambda state: state.paused,
        _go_on,
        machine=True,
    ),
    Move("it never goes on: {}", FREE, lambda state: state.paused, _is_dead, machine=True),
    Move("{}", FREE, _orders, _work, **_BY_MACHINES),
    Move("{} tells what it has", FREE, _untold, _register, machine=True),
    Move("Cinder carries out {}", FREE, lambda s: s.world.late, _lands, machine=True),
    Move("{} loses power", FAULT, _hosts(up=True), _goes_down),
    Move("{} comes back", FREE, _hosts(up=False), _comes_back),
    Move("an operator fences {}", FREE, _hosts(up=False, fenced=False), _fence),
    Move("an operator unfences {}", FREE, _hosts(up=True, fenced=True), _unfence),
    Move("an operator retries {}", FREE, _parked, _by_operator("retry")),
    Move("an operator unwinds {}", ACT, _open, _by_operator("unwind")),
    Move("an operator gives {} up", ACT, _parked, _by_operator("give_up")),
    Move("an operator looks, twice", ACT, _server, _look),
    Move("an operator repairs {}", FREE, _confirmed, _repair),
    Move("a user attaches {}", REQUEST, _volumes, _attach),
    Move("a user detaches {}", REQUEST, _volumes, _detach),
    Move("a user migrates the server", REQUEST, _server, _act("live_migrate", moves=True)),
    Move("a user evacuates the server", REQUEST, _server, _act("evacuate", moves=True)),
    Move("a user rebuilds the server", REQUEST, _server, _act("rebuild")),
    Move("a user deletes the server", REQUEST, _server, _delete),
    Move("somebody makes a reservation of {}", FAULT, _volumes, _reserved_by_hand),
    Move("somebody attaches {} past us", FAULT, _free, _attached_by_hand),
    Move("somebody stops the guest with virsh: {}", FAULT, _guests, _killed_by_hand),
    # Who still has it, the ledger asks itself (handlers.results.presence).
    Move("somebody moves the guest with virsh: {}", FAULT, _between_runs, _moved_by_hand),
)
