"""Moves and states of the model in words, for people."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from aggregates.finding import Finding
from aggregates.operation import Operation
from tests.model.state import UUIDS, Pause, State
from tests.model.world import SERVER, VOLUMES, Late


class Order(NamedTuple):
    """What an agent may work on."""

    host: str
    operation_id: str
    run: int


def shown(thing: Any, state: State) -> str:
    """What a move is done on."""
    match thing:
        case Order():
            return _order(thing, state)
        case Pause():
            return _name(thing.operation_id, state)
        case Late():
            return f"a late request for {_name(thing.volume_id, state)}"
        case tuple():
            return ", ".join(_name(each, state) for each in thing)
    return _name(thing, state)


def _order(order: Order, state: State) -> str:
    operation = state.get(Operation, order.operation_id)
    run = next(each for each in operation.history.active.values() if each.number == order.run)
    does = "undoes" if run.undo else "does"
    step = operation.history.next_step(run)
    return f"{order.host} {does} {step!r} of {_name(order.operation_id, state)}"


def _name(id_: str, state: State) -> str:
    if id_ in VOLUMES:
        return f"volume {VOLUMES.index(id_) + 1}"
    if id_ == SERVER:
        return "the server"
    try:
        known = state.known.get(UUID(id_))
    except ValueError:  # a name: of a host, of a repair
        return id_
    if isinstance(known, Finding) and known.found is not None:
        return f"{known.found.drift_class} of {_name(known.found.key, state)}"
    if isinstance(known, Operation) and known.started is not None:
        return f"the {known.started.flow}"
    row = state.world.rows.get(id_)
    return f"the attachment of {_name(row.volume_id, state)}" if row else id_[:8]


def named(text: str, state: State) -> str:
    """The text with names in place of ids."""
    return UUIDS.sub(lambda found: _name(found[0], state), text)


def told(state: State) -> str:
    """A state in a few lines: operations, guests and connections of hosts, Cinder's attachments."""
    flows = [f"{each.started.flow} {each.state}" for each in state.all(Operation) if each.started]
    instance = state.instance
    lines = [f"the server is {instance.power_state} at {instance.host}; {', '.join(flows)}"]
    for name, host in state.world.hosts.items():
        guests = [
            f"guest {'runs' if runs else 'is off'}{_with(d)}" for runs, d in host.guests.values()
        ]
        connected = [_name(each, state) for each in sorted(host.connected)]
        is_ = "up" if host.on else "down"
        lines.append(f"{name} is {is_}; {'; '.join(guests) or 'no guest'}; connected: {connected}")
    rows = [
        f"{_name(r.volume_id, state)} {r.status} {r.host or ''}" for r in state.world.rows.values()
    ]
    lines.append(f"Cinder's attachments: {rows}")
    return "\n        ".join(lines)


def _with(disks: tuple[str, ...]) -> str:
    return "".join(f" with volume {VOLUMES.index(disk) + 1}" for disk in disks)
