"""Flows and plans: what an operation will do, as data.

A flow is written as a table, one file each in `handlers/flows/`; `expand` makes a
plan of it for one request: one *lane* per volume, and the hosts it runs on.
Stages run one after the other.  Every lane goes through them by itself, and lanes
run together; they meet at stages that are done `once`, for the whole server, which
begin when all lanes have come so far.  So they do where only the lanes of one host go on
(`Stage.of`): what a resize has on both of its hosts is two lanes.

The *pivot* is the last step that can still be undone by failing: up to and
including it a failure unwinds everything done so far, in reverse; after it there
is only forward, or PARK.  A flow without a pivot can be unwound to its end.  The undo
of a pivot may find that the pivot has happened; then, too, there is only forward.

A host that is fenced, or that does not exist (an offloaded server's), cannot let go
of anything any more, nor hold it.  Steps that only release something are then the
ledger's (`verbs.Fence`): the fence is the evidence, as far as it goes (handlers.engine.fences).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any, Self

from aggregates.operation import SERVER, ActiveRun, Operation
from aggregates.server import DEVICES_MAX
from handlers.engine.verbs import VERBS, AnyVerb, Fence, LedgerVerb
from handlers.engine.volumes import VolumeRule
from host_agent.shared.contract.lane import Lane, stored
from host_agent.shared.contract.messages import GuestOrder, Verb
from host_agent.shared.contract.wire import plain, read

#: A deletion may have three of each volume: one for each host of a resize, and one that a
#: parked operation may have left.  A server has at most as many volumes as there are device names.
LANES_MAX = 3 * DEVICES_MAX
STEPS_MAX = 64


class Place(StrEnum):
    """Where a stage runs: S1's "(api)", and "(compute)" on one host or another."""

    LEDGER = "ledger"
    HOST = "host"  # where the server is
    SOURCE = "source"
    DESTINATION = "destination"
    HOLDER = "holder"  # the host that holds the lane's attachment
    ARRIVAL = "arrival"  # where a migration that nobody saw end may still bring the guest


class Side(StrEnum):
    """Which of a lane's attachments a stage works on."""

    CURRENT = "current"  # what the server has, or had
    NEW = "new"  # what it is to have: the destination's attachment, or another volume


class Only(StrEnum):
    """Some of a plan's lanes, by what is known of them when it is made."""

    IMAGED = "imaged"  # the one whose volume gets an image
    NOT_IN_GUEST = "bare"  # no guest's disks: perhaps no host has ever connected them


class Ask(StrEnum):
    """Who else must not show something, before a flow begins and before it starts or frees anything
    (handlers.results.presence).
    """

    NOTHING = "nothing"  # it starts, frees, forgets and deletes nothing that others could have
    GUEST = "guest"  # nobody else shows the server's guest
    VOLUMES = "volumes"  # nor one of the volumes


class PlanError(ValueError):
    """A plan that breaks the rules of plans; the flow's table is wrong."""


@dataclass(frozen=True)
class Step:
    """`name` is unique in the plan; `undo` is done instead when the plan unwinds.

    `durable`: what a stored plan says of it (Plan.durable); None: by today's rules.
    """

    name: str
    do: AnyVerb
    undo: AnyVerb | None = None
    durable: tuple[str, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Stage:
    """Steps that each lane does in order, in one place; or that are done once for all.

    `of`: only by lanes whose attachment is on that host.  `only`: by some of them.
    """

    place: Place
    steps: tuple[Step, ...]
    side: Side = Side.CURRENT
    once: bool = False
    of: Place | None = None
    only: Only | None = None


@dataclass(frozen=True)
class Table:
    """The stages of a flow and its pivot, and what follows from these two alone: all plans of
    a flow share it.  Refuses to exist if it breaks the rules of plans.
    """

    stages: tuple[Stage, ...]
    pivot: str | None
    steps: dict[str, Step] = field(init=False, repr=False, compare=False)  # by name, in order
    stage_of: dict[str, Stage] = field(init=False, repr=False, compare=False)
    after_pivot: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stage_of = {step.name: stage for stage in self.stages for step in stage.steps}
        steps = {step.name: step for stage in self.stages for step in stage.steps}
        count = sum(len(stage.steps) for stage in self.stages)
        names = list(steps)
        _rule(0 < count <= STEPS_MAX, f"one to {STEPS_MAX} steps")
        _rule(len(names) == count, "step names are unique")
        _rule(self.pivot is None or self.pivot in names, "the pivot is a step of the plan")
        after = names[names.index(self.pivot) + 1 :] if self.pivot is not None else []
        for name, step in steps.items():
            verbs = LedgerVerb if stage_of[name].place is Place.LEDGER else Verb
            fits = isinstance(step.do, verbs) and isinstance(step.undo, verbs | None)
            _rule(fits, f"step {name} uses verbs of place {stage_of[name].place}")
            undoable = name not in after or step.undo is None
            _rule(undoable, f"step {name} after the pivot has no undo")
        found = {"steps": steps, "stage_of": stage_of, "after_pivot": frozenset(after)}
        for attribute, value in found.items():
            object.__setattr__(self, attribute, value)


@dataclass(frozen=True)
class Flow:
    """A table of the product: `handlers/flows/` holds one per row of the design.

    `exclusive`: nothing else may be done to the server meanwhile.  `patient`: what may
    work later is tried until it does; nobody waits for it (release work).  `trusts`: up to
    its pivot it goes on only as long as the fence of that host says that the guest is not
    running there.  `claims_volumes`: nothing else may be done to its volumes meanwhile; if not, it
    goes on beside what is parked about one of them, and without that one (decision 0054).
    `volumes`: how its volumes have to be in Cinder for it to be accepted; None: it asks Cinder for
    nothing that this could forbid (decision 0040).  `asks`: who else could have what it works on; a
    new flow asks for all, unless its table says why not.
    """

    name: str
    stages: tuple[Stage, ...]
    pivot: str | None = None
    exclusive: bool = True
    patient: bool = False
    trusts: Place | None = None
    claims_volumes: bool = True
    volumes: VolumeRule | None = None
    asks: Ask = Ask.VOLUMES

    def expand(
        self,
        lanes: tuple[Lane, ...],
        hosts: dict[Place, str | None],
        guest: GuestOrder | None = None,
        *,
        hooked: bool = False,
    ) -> Plan:
        """The plan for these volumes on these hosts."""
        return Plan(
            flow=self.name,
            table=Table(self.stages, self.pivot),
            patient=self.patient,
            trusts=self.trusts,
            hooked=hooked and self.trusts is not None,
            lanes=lanes,
            hosts=hosts,
            guest=guest,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A flow made concrete; refuses to exist if it breaks its own rules.

    `hooked`: up to its pivot, and for its undo, a fence counts only once the program after it has
    ended well (decision 0119).
    """

    flow: str
    table: Table
    lanes: tuple[Lane, ...]
    hosts: dict[Place, str | None]
    guest: GuestOrder | None = None
    patient: bool = False
    trusts: Place | None = None
    hooked: bool = False

    def __post_init__(self) -> None:
        _rule(len(self.lanes) <= LANES_MAX, f"at most {LANES_MAX} lanes")
        _rule(self.pivot is None or self._turns_all(self.pivot), "a pivot is once, or of one lane")
        for stage in self.stages:
            here = stage.place is Place.LEDGER or stage.place is Place.HOLDER
            known = here or stage.place in self.hosts
            _rule(known, f"a host, or None, is given for place {stage.place}")
            _rule(not stage.once or self.guest is not None, "a stage for all has a guest's order")
            _rule(stage.of is None or stage.of in self.hosts, "a host is given for a stage's lanes")

    def _turns_all(self, step: str) -> bool:
        return self.stage_of(step).once or len(self.lanes_of(self.stage_of(step))) == 1

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.table.stages

    @property
    def pivot(self) -> str | None:
        return self.table.pivot

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self.table.steps.values())

    @cached_property
    def segments(self) -> list[tuple[tuple[int, ...], tuple[Stage, ...]]]:
        """Stages that lanes go through by themselves, with these lanes' numbers."""
        return [(lanes, tuple(stages)) for lanes, stages in groupby(self.stages, key=self.lanes_of)]

    def lanes_of(self, stage: Stage) -> tuple[int, ...]:
        """The numbers of the lanes that do the steps of this stage."""
        if stage.once:
            return (SERVER,)
        there = stage.of and self.hosts[stage.of]
        return tuple(
            number
            for number, lane in enumerate(self.lanes)
            if (stage.of is None or lane.host == there) and _is_one(lane, stage.only)
        )

    def stage_of(self, step: str) -> Stage:
        return self.table.stage_of[step]

    def step(self, name: str) -> Step:
        return self.table.steps[name]

    def verb(self, name: str, *, undo: bool, host: str | None) -> AnyVerb:
        """What a step does in this direction, on this host (None: in the ledger)."""
        step = self.step(name)
        verb = step.undo if undo else step.do
        if verb is None:
            raise PlanError(f"step {name} has no undo")
        if host is None and self.stage_of(name).place is not Place.LEDGER:
            instead = self.instead(name, undo=undo)
            assert instead is not None, "a run is the ledger's only if it can do all of it"
            return instead
        return verb

    def planned(self, name: str, *, undo: bool) -> AnyVerb:
        """What a step would do in this direction, by whoever it was planned for."""
        step = self.step(name)
        return (step.undo if undo else step.do) or LedgerVerb.CHECKPOINT

    def instead(self, name: str, *, undo: bool) -> LedgerVerb | None:
        """What the ledger does where the step's host is fenced; None: nobody but it can do that."""
        verb, undone = self.owed(name, undo=undo), undo and not self.puts_back(name)
        if verb is None or (fence := VERBS[verb].fence) is None:
            return None
        forward = not undone and self.after_pivot(name)
        alone = all(stage.side is not Side.NEW for stage in self.stages)
        only = {Fence.UNDO: undone, Fence.MOOT: forward, Fence.RELEASED: forward and alone}
        return VERBS[verb].instead or LedgerVerb.CHECKPOINT if only.get(fence, True) else None

    def owed(self, name: str, *, undo: bool) -> AnyVerb | None:
        """What a step is done, or undone, by where its host is fenced."""
        step = self.step(name)
        return step.undo if undo and not self.puts_back(name) else step.do

    def is_replaceable(self, steps: Iterable[str], *, undo: bool) -> bool:
        """Whether somebody else can do these steps if their host is fenced."""
        return all(self.instead(step, undo=undo) is not None for step in steps)

    def puts_back(self, name: str) -> bool:
        """Whether undoing the step needs its host: without it, the step counts as done."""
        undo = self.step(name).undo
        return name == self.pivot and undo is not None and VERBS[undo].puts_back

    def host_of(self, lane: int, place: Place) -> str | None:
        """The host that a lane's stage runs on; None: the ledger, or no host at all."""
        return self.lanes[lane].host if place is Place.HOLDER else self.hosts.get(place)

    def after_pivot(self, name: str) -> bool:
        """Whether failing there can no longer unwind the plan."""
        return name in self.table.after_pivot

    def durable(self, name: str) -> list[str]:
        """The directions ("do", "undo") in which the result of a step must be durable before
        the next step of its run begins.

        Around a pivot it is known where the plan stands: whether all before it is done when
        it begins, and whether it happened before anything follows that its undo does not
        take back with it; undoing it, too, may find that it has.
        """
        step, steps = self.step(name), self.stage_of(name).steps
        if step.durable is not None:
            return list(step.durable)
        after = next(iter(steps[steps.index(step) + 1 :]), None)
        is_pivot, is_before = name == self.pivot, after is not None and after.name == self.pivot
        undone = VERBS[step.undo or LedgerVerb.CHECKPOINT]
        turns = is_pivot and after is not None and after.do != undone.takes_back
        do = VERBS[step.do].durable or turns or is_before
        undo = undone.durable or is_pivot
        return [direction for direction, is_so in (("do", do), ("undo", undo)) if is_so]

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "pivot": self.pivot,
            "patient": self.patient,
            "trusts": self.trusts,
            **({"hooked": True} if self.hooked else {}),
            "hosts": {place.value: host for place, host in self.hosts.items()},
            "lanes": [stored(lane) for lane in plain(self.lanes)],
            "guest": plain(self.guest),
            "stages": [
                {
                    "place": stage.place.value,
                    "side": stage.side.value,
                    "once": stage.once,
                    **({"of": stage.of.value} if stage.of else {}),
                    **({"only": stage.only.value} if stage.only else {}),
                    "steps": [
                        {
                            "name": s.name,
                            "do": s.do.value,
                            "undo": s.undo and s.undo.value,
                            "durable": self.durable(s.name),
                        }
                        for s in stage.steps
                    ],
                }
                for stage in self.stages
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a stored plan.  A key that is added needs a meaning for plans that lack it."""
        guest = data["guest"]
        return cls(
            flow=data["flow"],
            table=_table(data),
            patient=data["patient"],
            trusts=Place(data["trusts"]) if data["trusts"] else None,
            hooked=data.get("hooked", False),
            hosts={Place(place): host for place, host in data["hosts"].items()},
            lanes=tuple(read(lane, Lane) for lane in data["lanes"]),
            guest=read(guest, GuestOrder) if guest else None,
        )


#: By flow: the stages and the pivot of the plan that was read last, and their table.
_LAST_READ: dict[str, tuple[Any, str | None, Table]] = {}


def _table(plan: dict[str, Any]) -> Table:
    """The table of a stored plan: mostly that of the flow's plan before it, for to compare
    costs a tenth of making it.
    """
    stages, pivot = plan["stages"], plan["pivot"]
    last_stages, last_pivot, table = _LAST_READ.get(plan["flow"], (None, None, None))
    if table is None or stages != last_stages or pivot != last_pivot:
        table = Table(tuple(_stage(stage) for stage in stages), pivot)
        _LAST_READ[plan["flow"]] = stages, pivot, table
    return table


def _stage(data: dict[str, Any]) -> Stage:
    place = Place(data["place"])
    verbs: type[LedgerVerb | Verb] = LedgerVerb if place is Place.LEDGER else Verb
    return Stage(
        place,
        tuple(
            Step(
                s["name"],
                verbs(s["do"]),
                verbs(s["undo"]) if s["undo"] else None,
                tuple(s["durable"]),
            )
            for s in data["steps"]
        ),
        side=Side(data["side"]),
        once=data["once"],
        of=Place(data["of"]) if "of" in data else None,
        only=Only(data["only"]) if "only" in data else None,
    )


def _is_one(lane: Lane, only: Only | None) -> bool:
    match only:
        case Only.IMAGED:
            return lane.image is not None
        case Only.NOT_IN_GUEST:
            return lane.bare
    return True


def _rule(holds: bool, rule: str) -> None:
    if not holds:
        raise PlanError(f"Plan rule broken: {rule}.")


# ------------------------------------------------------------------- the plan of an operation


def plan_of(operation: Operation) -> Plan:
    """The plan stored when the operation started."""
    if operation.plan.value is None:
        assert operation.started is not None, "an operation is never loaded without its first event"
        operation.plan.value = Plan.from_json(operation.started.plan)
    plan: Plan = operation.plan.value
    return plan


def lane_of(operation: Operation, lane: int, step: str) -> Lane:
    """The lane as this step sees it, with what steps have found out so far: also those of the
    volume's other lanes.

    A step for the whole server has one of no volume.
    """
    if lane == SERVER:
        assert operation.started is not None
        return Lane.of_server(operation.started.server_id)
    new = plan_of(operation).stage_of(step).side is Side.NEW
    return operation.lanes[lane].beside(operation.lanes).side(new=new)


def arrival(operation: Operation) -> str | None:
    """The host to which a migration may still bring the guest: nobody has seen its end."""
    plan, history = plan_of(operation), operation.history
    step = next((step.name for step in plan.steps if step.do is Verb.GUEST_MIGRATE), None)
    if step is None or not history.touched(SERVER, step):
        return None
    known = any(history.of_step(SERVER, step, undo=undo).resolved for undo in (False, True))
    return None if known else plan.hosts[Place.DESTINATION]


def order_of(operation: Operation, step: str) -> GuestOrder:
    """What a step for the whole server is to do, and with which lanes."""
    plan = plan_of(operation)
    assert plan.guest is not None, "a plan with such a step has an order"
    new = plan.stage_of(step).side is Side.NEW
    return replace(plan.guest, lanes=tuple(lane.side(new=new) for lane in operation.lanes))


def is_first(operation: Operation, run: ActiveRun) -> bool:
    """Whether no earlier run of the operation had any of the steps that this one still owes.

    Never of a repair: where something was wrong before, more than an earlier attempt may be found.
    """
    assert operation.started is not None, "it runs"
    history = operation.history
    todo = run.steps[run.steps.index(history.next_step(run)) :]
    before = {(lane, step) for lane, step, undo in history.records if not undo} | history.begun
    repairs = operation.started.finding is not None
    touched = run.undo or repairs or bool(before & {(run.lane, step) for step in todo})
    return not touched


def verb_of(operation: Operation, run: ActiveRun, step: str) -> AnyVerb:
    """What the run does as this step."""
    if run.verb is not None:
        return Verb(run.verb)
    return plan_of(operation).verb(step, undo=run.undo, host=run.host)


def volumes_of(operation: Operation) -> set[str]:
    """Every volume that the operation works on, or has worked on."""
    lanes = [*plan_of(operation).lanes, *operation.lanes]
    return set().union(*(lane.volume_ids for lane in lanes))
