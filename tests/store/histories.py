"""Histories to project: what the real service, engine and agent verbs record in a world.

`Watched` folds every projection in memory as events are saved, so that a test may compare
rows with aggregates at every point that could be a crash.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from psycopg import sql as compose

import sql
from aggregates.base import Event, EventContext
from aggregates.errors import DomainError
from aggregates.operation import OperationState
from handlers.requests import operator
from host_agent.shared.contract.messages import PowerState
from ledger.log.mapper import IndexedEvent, JSONBody, LedgerMapper
from projections.base import LoggedEvent, Projection, Row
from projections.catalog import ALL
from tests.memory import CALL_MODES, SAVE_MODES, Crash, Trouble
from tests.store.columns import misfits
from tests.world import CONTEXT, HOST, OTHER, World

MAPPER = LedgerMapper(JSONBody())


def logged(position: int, event: Event, context: EventContext, at: datetime) -> LoggedEvent:
    """The event as a projection reads it from the log."""
    stored = MAPPER.to_stored_event(event)
    body = orjson.loads(stored.state)
    seen = body.pop("seen", None)
    return LoggedEvent(
        position=position,
        recorded_at=at,
        topic=stored.topic,
        originator_id=str(stored.originator_id),
        originator_version=stored.originator_version,
        host=stored.about.host,
        operation_id=context.operation_id,
        body=body,
        seen=seen,
    )


class Folded:
    """Every projection's rows, in memory."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {p.name: {} for p in ALL}
        self._shown: dict[str, Row] = {}  # the rows of states, by key
        self._tables: dict[str, list[Row]] = {}  # those asked for since the last fold
        self.position = 0

    def fold(self, event: LoggedEvent) -> None:
        self.position = event.position
        for projection in ALL:
            if event.topic in projection.topics:
                self._fold(projection, event)

    def _fold(self, projection: Projection, event: LoggedEvent) -> None:
        states, key = self._states[projection.name], projection.key_of(event)
        self._tables.pop(projection.name, None)
        if projection.stateful:
            self._shown.pop(key, None)
            states[key] = projection.fold(states.get(key), event)
            return
        before = orjson.dumps(states.get(key))
        row = projection.fold(states.get(key), event)
        assert orjson.dumps(states.get(key)) == before, "a fold never changes the row it is given"
        states[key] = row

    def row(self, name: str, key: str) -> Row | None:
        state = self._states[name].get(key)
        if state is None or isinstance(state, dict):
            return state
        if key not in self._shown:
            self._shown[key] = state.row()
        return self._shown[key]

    def table(self, name: str) -> list[Row]:
        if name not in self._tables:
            rows = (self.row(name, key) for key in self._states[name])
            self._tables[name] = [row for row in rows if row is not None]
        return self._tables[name].copy()

    def state(self, name: str, key: str) -> Any:
        """What a fold goes on from."""
        return self._states[name][key]

    def derived(self, name: str) -> list[Row]:
        return [
            row
            for projection in ALL
            for derived in projection.derived
            if derived.table == name
            for parent in self._states[projection.name].values()
            if parent is not None
            for row in derived.rows(parent)
        ]

    def misfits(self) -> Iterator[str]:
        """What of all rows the tables cannot take."""
        for projection in ALL:
            for row in self.table(projection.name):
                yield from misfits(projection.table, row)
            for derived in projection.derived:
                for row in self.derived(derived.table):
                    yield from misfits(derived.table, row)


class Watched:
    """A world whose every save is folded; `at_rest` is called after each."""

    def __init__(self, world: World, at_rest: Callable[[Watched], None] = lambda _: None) -> None:
        self.world = world
        self.folded = Folded()
        self._at_rest = at_rest
        self._save = world.store.save
        self._seen = 0
        self._catch_up()
        world.store.save = self._saved  # type: ignore[method-assign]

    def _saved(self, *aggregates: Any, context: EventContext) -> int:
        try:
            return self._save(*aggregates, context=context)
        finally:
            self._catch_up()

    def _catch_up(self) -> None:
        for event, context in self.world.store.log[self._seen :]:
            at = datetime.fromtimestamp(self.world.clock(), UTC)
            self.folded.fold(logged(self.folded.position + 1, event, context, at))
        if self._seen < len(self.world.store.log):  # a lost save decides nothing
            self._seen = len(self.world.store.log)
            self._at_rest(self)


#: What may be asked for between the attaches and the detaches; some of it will be refused.
ACTS = ("live_migrate", "resize", "confirm_resize", "revert_resize", "shelve", "unshelve", "stop")


def scenario(seed: int, at_rest: Callable[[Watched], None] = lambda _: None) -> Watched:
    """Two volumes attached, moved about and detached, with random trouble and an operator
    who reacts.
    """
    chance = random.Random(seed)
    world = World(chance.choice([PowerState.RUNNING, PowerState.SHUTDOWN]), volumes=2)
    watched = Watched(world, at_rest)
    asks: list[Callable[[], str]] = [
        *(partial(world.attach, volume_id) for volume_id in world.volumes),
        *(partial(_act, world, chance.choice(ACTS)) for _ in range(3)),
        *(partial(world.detach, v) for v in world.volumes if chance.random() < 0.7),
    ]
    for ask in asks:
        points = {chance.randrange(40): chance.choice(CALL_MODES + SAVE_MODES) for _ in range(3)}
        world.trouble = Trouble(points)
        try:
            operation_id = ask()
            if chance.random() < 0.25:
                _change_mind(world, operation_id, chance)
            operation = world.run(operation_id)
        except DomainError:  # refused, after the trouble before: an answer as well
            continue
        if operation.state is OperationState.PARKED:
            _react(world, str(operation.id), chance)
    return watched


def _act(world: World, flow: str) -> str:
    """To the host where the server is not."""
    destination = OTHER if world.instance.host == HOST else HOST
    return world.act(flow, destination=destination)


def _react(world: World, operation_id: str, chance: random.Random) -> None:
    world.trouble = Trouble()
    act = chance.choice(["retry", "unwind", "give_up", "skip", "skip", "skip"])
    step = operator.left(world.operation(operation_id))[0]
    with contextlib.suppress(DomainError):
        world.service.act(operation_id, act, "why", CONTEXT, lane=step.lane, step=step.step)
        world.run(operation_id)


def _change_mind(world: World, operation_id: str, chance: random.Random) -> None:
    """Unwind what is under way."""
    try:
        for _ in range(chance.randrange(3)):
            world.service.advance(operation_id)
            world.run_agent(operation_id, steps=chance.randrange(1, 4))
        world.service.act(operation_id, "unwind", "why", CONTEXT)
    except Crash:
        world.boot()
    except DomainError:
        pass  # too late, or nothing to unwind


def stored_events(world: World) -> list[tuple[IndexedEvent, EventContext]]:
    """The world's log in the form the recorder takes."""
    return [(MAPPER.to_stored_event(event), context) for event, context in world.store.log]


#: Keeps the projections `names` from being advanced until the transaction ends, as a rebuild does.
_LOCK: Any = sql.query("rebuild", "lock_live").decode()
LOCK = compose.SQL(_LOCK).format(live=compose.Identifier("public"))
