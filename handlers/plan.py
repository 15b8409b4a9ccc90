"""Flows and plans: what an operation will do, as data.

A flow is written as a table, one file each in `handlers/flows/`; `expand` makes a
plan of it for one request: one *lane* per volume, and the hosts it runs on.
Stages run one after the other.  Within a stage every lane runs the stage's steps
in order, and lanes run together; the next stage begins when all lanes are done.

The *pivot* is the last step that can still be undone by failing: up to and
including it a failure unwinds everything done so far, in reverse; after it there
is only forward, or PARK.  A flow without a pivot can be unwound to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from host_agent.contract import Lane, Verb

LANES_MAX = 64
STEPS_MAX = 64


class Place(StrEnum):
    """Where a stage runs: S1's "(api)" and "(compute)"."""

    LEDGER = "ledger"
    HOST = "host"


class LedgerVerb(StrEnum):
    """What a step of the ledger itself does.  Names are stable for ever."""

    ATTACHMENT_RESERVE = "attachment_reserve"
    ATTACHMENT_DELETE = "attachment_delete"
    MAPPING_BIND = "mapping_bind"
    MAPPING_UNBIND = "mapping_unbind"


class PlanError(ValueError):
    """A plan that breaks the rules of plans; the flow's table is wrong."""


@dataclass(frozen=True)
class Step:
    """`name` is unique in the plan; `undo` is done instead when the plan unwinds."""

    name: str
    do: Verb | LedgerVerb
    undo: Verb | LedgerVerb | None = None


@dataclass(frozen=True)
class Stage:
    """Steps that each lane does in order, in one place."""

    place: Place
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Flow:
    """A table of the product: `handlers/flows/` holds one per row of the design."""

    name: str
    stages: tuple[Stage, ...]
    pivot: str | None = None

    def expand(self, lanes: tuple[Lane, ...], hosts: dict[Place, str]) -> Plan:
        """The plan for these volumes on these hosts."""
        return Plan(flow=self.name, stages=self.stages, pivot=self.pivot, lanes=lanes, hosts=hosts)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A flow made concrete; refuses to exist if it breaks its own rules."""

    flow: str
    stages: tuple[Stage, ...]
    pivot: str | None
    lanes: tuple[Lane, ...]
    hosts: dict[Place, str]

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        _rule(bool(self.lanes), "a plan has at least one lane")
        _rule(len(self.lanes) <= LANES_MAX, f"at most {LANES_MAX} lanes")
        _rule(0 < len(names) <= STEPS_MAX, f"one to {STEPS_MAX} steps")
        _rule(len(set(names)) == len(names), "step names are unique")
        _rule(self.pivot is None or self.pivot in names, "the pivot is a step of the plan")
        for stage in self.stages:
            _rule(
                stage.place is Place.LEDGER or stage.place in self.hosts,
                f"a host is given for place {stage.place}",
            )
            verbs = LedgerVerb if stage.place is Place.LEDGER else Verb
            for step in stage.steps:
                known = isinstance(step.do, verbs) and isinstance(step.undo, verbs | None)
                _rule(known, f"step {step.name} uses verbs of place {stage.place}")
                if self.after_pivot(step.name):
                    _rule(step.undo is None, f"step {step.name} after the pivot has no undo")
            inside = self.pivot in [step.name for step in stage.steps[:-1]]
            _rule(not inside or len(self.lanes) == 1, "a pivot inside a stage has one lane")

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for stage in self.stages for step in stage.steps)

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def verb(self, name: str, *, undo: bool) -> Verb | LedgerVerb:
        """What a step does in this direction."""
        step = self.step(name)
        if not undo:
            return step.do
        if step.undo is None:
            raise PlanError(f"step {name} has no undo")
        return step.undo

    def after_pivot(self, name: str) -> bool:
        """Whether failing there can no longer unwind the plan."""
        names = [step.name for step in self.steps]
        return self.pivot is not None and names.index(name) > names.index(self.pivot)

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "pivot": self.pivot,
            "hosts": {place.value: host for place, host in self.hosts.items()},
            "lanes": [lane.to_wire() for lane in self.lanes],
            "stages": [
                {
                    "place": stage.place.value,
                    "steps": [
                        {"name": s.name, "do": s.do.value, "undo": s.undo and s.undo.value}
                        for s in stage.steps
                    ],
                }
                for stage in self.stages
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(
            flow=data["flow"],
            pivot=data["pivot"],
            hosts={Place(place): host for place, host in data["hosts"].items()},
            lanes=tuple(Lane.from_wire(lane) for lane in data["lanes"]),
            stages=tuple(_stage(stage) for stage in data["stages"]),
        )


def _stage(data: dict[str, Any]) -> Stage:
    place = Place(data["place"])
    verbs: type[LedgerVerb | Verb] = LedgerVerb if place is Place.LEDGER else Verb
    return Stage(
        place,
        tuple(
            Step(s["name"], verbs(s["do"]), verbs(s["undo"]) if s["undo"] else None)
            for s in data["steps"]
        ),
    )


def _rule(holds: bool, rule: str) -> None:
    if not holds:
        raise PlanError(f"Plan rule broken: {rule}.")
