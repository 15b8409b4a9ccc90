"""`python -m tests.golden`: write what this version stores and sends, to be read for ever.

Once, with a release: CONTRIBUTING.md says when.  What stands in the directory of a version that
was released is never written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid5

import sql
from aggregates.base import Event
from aggregates.finding import Finding
from aggregates.operation import Operation
from handlers.drift import judge
from handlers.drift.classes import BY_NAME
from handlers.engine.rules import KINDS
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.survey import CAPABILITY, SurveyAnswer
from host_agent.shared.contract.wire import plain
from host_agent.survey import Surveyor
from ledger.log import schema
from ledger.log.unit import Unit
from projections.catalog import ALL
from tests.flows import drifted
from tests.flows.scenarios import SCENARIOS
from tests.golden.stored import Golden, line_of
from tests.growing import extend
from tests.store.histories import Watched, stored_events
from tests.world import CONTEXT, HOST, NAMES, OTHER, Broken, World, events

VALUES: dict[str, Any] = {
    "str": "some",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "list[str]": ["some"],
    "dict[str, str]": {"name": "some"},
    "dict[str, int]": {"name": 1},
    "dict[str, Any]": {"name": ["some"]},
    "list[dict[str, Any]]": [{"name": "some"}],
}
GONE = "00000000-0000-4000-8000-000000000000"


def main() -> None:
    golden = Golden(Path(__file__).parent / version("attachment-ledger"))
    golden.path.mkdir(exist_ok=True)
    watched = Watched(World(volumes=3))
    story(watched.world)
    lines = [line_of(event, context) for event, context in stored_events(watched.world)]
    golden.write_events(lines)
    golden.write("samples", {each.TOPIC: sample(each) for each in event_classes()})
    golden.write("rows", {each.name: watched.folded.table(each.name) for each in ALL})
    golden.write("plans", plans())
    [command] = [row["command"] for row in watched.folded.derived("mailbox")]
    golden.write("messages", {"command": command, **messages(watched.world)})
    texts = {name: schema.checksum(text) for name, text in sql.migrations().items()}
    golden.write("migrations", texts)


def story(world: World) -> None:
    """A server that does much, with two volumes; in the end one operation is parked, and another
    one is its host's turn.
    """
    first, second, third = world.volumes
    asks: list[Callable[[], object]] = [
        partial(world.attach, first),
        partial(world.attach, second),
        partial(world.act, "live_migrate", destination=OTHER),
        partial(extend, world),
        partial(world.act, "stop"),
        partial(world.act, "start"),
        partial(world.act, "resize", destination=HOST),
        partial(world.act, "confirm_resize"),
        partial(world.swap, second, third),
        partial(world.act, "shelve"),
        partial(world.act, "unshelve", destination=OTHER),
        partial(world.detach, first),
        partial(world.fence, OTHER),
        partial(world.act, "evacuate", destination=HOST),
    ]
    for ask in asks:
        ask()
        while running := world.running():
            world.done(str(running[0]))
    for number in range(2):
        _look(world, number)
    Broken(world, "cinder.attachment_delete")
    world.run(world.detach(third))
    world.service.advance(world.attach(first))


def _look(world: World, number: int) -> None:
    """A look misses the server's disk; the second one confirms it."""
    drift, row = BY_NAME["disk_missing"], drifted.disk_row(world, None)
    unit = Unit(world.store)
    finding = unit.get(Finding, judge.id_of(drift, row))
    look_id = str(uuid5(NAMES, f"look {number}"))
    judge.see(finding, drift, row, judge.Sight(look_id=look_id, position=len(world.store.log)))
    unit.save(CONTEXT)


def event_classes() -> list[type[Event]]:
    found = (each for kind in KINDS.values() for each in vars(kind).values())
    return [each for each in found if isinstance(each, type) and issubclass(each, Event)]


def sample(kind: type[Event]) -> dict[str, Any]:
    """An event's body with something in each field, for the story has not all of them."""
    own = fields(kind)[len(fields(Event)) :]
    body = {each.name: VALUES[str(each.type).removesuffix(" | None")] for each in own}
    return {**body, "class_version": kind.class_version}


def plans() -> dict[str, Any]:
    """Of each flow, and a scenario of it, the plan that its operation was started with."""
    found: dict[str, Any] = {}
    for scenario in SCENARIOS:
        world = scenario.begin()
        scenario.ask(world)
        started = events(world, Operation.OperationStarted)[-1]
        found.setdefault(started.flow, started.plan)
    return dict(sorted(found.items()))


def messages(world: World) -> dict[str, Any]:
    """What the host's agent says: of the operation whose turn it is, and of itself."""
    told: dict[str, Any] = {}
    service, agent = world.service, world.agents[HOST]

    def register(name: str, said: Any, *more: Any) -> Any:
        told["registration"] = {
            **plain(said),
            "capabilities": {**said.capabilities, CAPABILITY: True, "drivers": ["iscsi", "rbd"]},
            "connector": {"host": HOST, "ip": "192.0.2.1", "initiator": "iqn.1994-05.com.redhat:1"},
        }
        return type(service).register(service, name, said, *more)

    def report(name: str, said: Any, context: Any) -> Any:
        told["report"] = plain(said)
        return type(service).report(service, name, said, context)

    vars(service).update(register=register, report=report)
    world.register(HOST)
    survey = Surveyor(agent["guests"], agent["records"], agent["storage"], "boot-1").survey(0)
    answer = SurveyAnswer(token=GONE, epoch=0, digest=survey.digest())
    changes = Changes(epoch=0, guests=tuple(agent["guests"].inventory()), gone=(GONE,))
    [running] = world.running()
    world.run_agent(str(running), HOST)
    progress = {"operation_id": str(running), "run": 1, "done_bytes": 1, "total_bytes": 2}
    return {
        **told,
        "changes": plain(changes),
        "survey": {**plain(survey), **plain(answer)},
        "progress": progress,
    }


if __name__ == "__main__":
    main()
