"""A host's agent as the simulation steps it: what link.py and executor.py do with threads.

It registers with an inventory that may be old by then, takes commands of its mailbox
into a queue, runs several beside each other under the real lock names, step by step, and
delivers each report until it is acknowledged.  A life ends with a crash, and with it all
that was not durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aggregates import errors
from host_agent import verbs
from host_agent.executor import (
    _ATTACHING,
    _CHANGING_GUESTS,
    _GOING_ON,
    Ports,
    _exclude,
    _has_lock_name,
    _learn,
    _take_back,
)
from host_agent.leftovers import Leftovers, Release
from host_agent.locks import Locks, names_for, names_for_guest
from host_agent.shared.contract import QUESTIONS, Command, Registration, Report, StepError, Verb
from host_agent.shared.faults import Faults
from host_agent.shared.ports import PortError, VolumeView
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests
from host_agent.simulated.host_state import SCHEME
from host_agent.storage.keys import KeyManagers
from host_agent.verbs.context import RunContext as AgentContext
from host_agent.verbs.context import Waits, final
from ledger.log.application import ConflictError
from tests.memory import Crash, Tripwire
from tests.simulation.chance import Mortal
from tests.world import CONTEXT, FIXED_KEY

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

SERVICE_VERSION = 2


class Unheld:
    """Locks where nobody else is: leftovers are cleared before there are commands."""

    @contextmanager
    def hold(self, _names: Sequence[str], _waiter: object) -> Iterator[None]:
        yield


class Following:
    """The Watch of a run."""

    def __init__(self) -> None:
        self.called_off = False

    def cancelled(self) -> bool:
        return self.called_off

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        pass


class Users:
    """The ledger's answer to an agent's question (ports.Users)."""

    def __init__(self, cloud: Cloud, host: str) -> None:
        self._cloud, self._host = cloud, host

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        return self._cloud.service.others(self._host, volume_id, attachment_id)


@dataclass
class Taken:
    """A command that the agent has; `names` are its locks once it has begun."""

    command: Command
    names: frozenset[str] | None = None
    step: int = 0
    owed: Report | None = None
    busy: bool = False
    watch: Following = field(default_factory=Following)
    context: AgentContext | None = None


class Agent:
    """One host's agent, through all its lives."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        self.cloud, self.name = cloud, name
        self.lives = False
        self.life = 0
        self.epoch: int | None = None
        self.taken: dict[tuple[str, int], Taken] = {}
        self.wants_registration = True
        self.clearing = False  # what it was told to let go of when it registered last
        self._said: Registration | None = None

    # ---------------------------------------------------------------- lives

    def start(self) -> None:
        self.lives, self.life = True, self.life + 1
        self.taken, self._finished, self._after = {}, set[tuple[str, int]](), 0
        self.epoch, self._said, self.wants_registration = None, None, True
        self._ports = self._new_ports()

    def stop(self) -> None:
        """Dead: whoever is in the midst of something finds out at the next point."""
        self.lives, self.life = False, self.life + 1
        self.taken, self.epoch = {}, None

    def _new_ports(self) -> dict[str, Any]:
        cloud, name, life = self.cloud, self.name, self.life
        state = cloud.states[name]

        def tripped(what: str, port: Any) -> Any:
            mortal = Mortal(cloud.chance, lambda: self.lives and self.life == life)
            return Tripwire(what, port, lambda: mortal)

        cinder = tripped("cinder", cloud.late)
        return {
            "cinder": cinder,
            "old_cinder": cinder,
            "brick": tripped("brick", SimulatedBrick(state, Faults(), name)),
            "guests": tripped("guests", SimulatedGuests(state, Faults(), name)),
            "users": Users(cloud, name),
            "keys": tripped("keys", KeyManagers(FIXED_KEY)),
            "records": cloud.records[name],
            "sent": cloud.sent[name],
        }

    # --------------------------------------------------------- registration

    def register(self) -> None:
        """Look first, tell later: what is told may be no longer so."""
        if self._said is None:
            self.wants_registration = False
            guests = SimulatedGuests(self.cloud.states[self.name], Faults(), self.name)
            self._said = Registration(
                service_version=SERVICE_VERSION,
                capabilities={
                    "multiattach": True,
                    "tag": True,
                    "migration": {"uri": SCHEME + self.name, "address": self.name},
                },
                guests=tuple(guests.inventory()),
                connections=tuple(self.cloud.records[self.name]),
            )
            return
        said = self._said
        try:
            told, _ = self.cloud.service.register(self.name, said, CONTEXT)
            shown = {guest.server_id for guest in said.guests}
            for server_id in sorted(self.cloud.guests_of_host(self.name) - shown):
                self.cloud.service.lost_guest(server_id, self.name, CONTEXT)
        except (Crash, ConflictError):  # the ledger's: the agent asks again
            return
        self._said, host = None, told.host
        if host.epoch != self.epoch:
            self.taken = {k: t for k, t in self.taken.items() if t.names is not None}
            self.epoch, self._after = host.epoch, 0
        self.clearing = host.suspect and any(host.leftovers)
        if self.clearing:
            self._clear(Release(*host.leftovers))

    def _clear(self, release: Release) -> None:
        world = Ports(**self._ports)
        clock = cast("Any", self.cloud.clock)
        self.wants_registration = True
        try:
            Leftovers(world, cast("Locks", Unheld()), clock).clear(release)
        except PortError as error:
            self.cloud.note(f"{self.name}: leftovers not cleared: {error.code}")
        except Crash:
            self._crashed()

    @property
    def registering(self) -> bool:
        return self.lives and (self.wants_registration or self._said is not None)

    # ------------------------------------------------------------- commands

    def poll(self) -> None:
        """Take what is new in the mailbox."""
        row = self.cloud.folded.row("hosts", self.name)
        if self.epoch is None or row is None:
            return
        if row["epoch"] != self.epoch:
            self.wants_registration = True
        elif not row["fenced"]:
            after, asked = self._after, row["suspect"]
            for command in self.cloud.mailbox(self.name):
                only_asks = QUESTIONS.issuperset(step.verb for step in command.steps)
                if command.position > after and (only_asks or not asked):
                    self._take(command)
            if asked:  # registering, it begins anew with the mailbox
                self.wants_registration, self._after = True, 0

    def _take(self, command: Command) -> None:
        self._after, key = command.position, (command.id, command.epoch)
        known = self.taken.get(key)
        if known is not None and command.cancel:
            known.watch.called_off = True
            if known.names is None:
                known.command = command
        if known is None and key not in self._finished:
            taken = self.taken[key] = Taken(command)
            taken.watch.called_off = command.cancel

    def ready(self) -> list[Taken]:
        """What may go on, or begin, now."""
        if not self.lives:
            return []
        begun = [taken for taken in self.taken.values() if taken.names is not None]
        queued = [taken for taken in self.taken.values() if taken.names is None]
        ready = [taken for taken in begun if not taken.busy]
        before = [taken.command for taken in begun]
        for taken in queued:
            if not any(_exclude(taken.command, other) for other in before):
                ready.append(taken)
            before.append(taken.command)
        return ready

    def step(self, taken: Taken) -> None:
        """Begin a command, do its next step, or deliver what came of it."""
        if taken.names is None and not self._begin(taken):
            return
        life, taken.busy = self.life, True
        try:
            if taken.owed is None:
                taken.owed = self._carry_out(taken)
            else:
                self._deliver(taken, taken.owed)
        except Crash:
            if self.life == life:
                self._crashed()
        finally:
            taken.busy = False

    def _crashed(self) -> None:
        self.cloud.note(f"{self.name}: the agent crashes")
        self.start()

    def _begin(self, taken: Taken) -> bool:
        """Take the locks, if they are free (executor._lock_names)."""
        names = self._lock_names(taken.command)
        held = {name for other in self.taken.values() for name in other.names or ()}
        if names is None or names & held:
            return False
        taken.names = names
        taken.context = AgentContext(
            clock=self.cloud.clock, waits=Waits(), watch=taken.watch, **self._ports
        )
        return True

    def _lock_names(self, command: Command) -> frozenset[str] | None:
        verbs_ = {step.verb for step in command.steps}
        attaching = bool(verbs_ & _ATTACHING) or Verb.GUEST_SPAWN in verbs_
        lanes = [command.lane] if command.lane else []
        if command.guest and Verb.GUEST_SPAWN in verbs_:
            lanes = [lane for lane in command.guest.lanes if lane.disk is None]
        views = {lane.volume_id: self._view(lane.volume_id) for lane in lanes}
        if attaching and not all(view is None or _has_lock_name(view) for view in views.values()):
            return None
        if command.guest is not None:
            return frozenset(names_for_guest(command.guest, views))
        assert command.lane is not None
        return frozenset(names_for(command.lane, views[command.lane.volume_id]))

    def _view(self, volume_id: str) -> VolumeView | None:
        try:
            return self.cloud.direct.volume(volume_id)
        except PortError:
            return None

    # ---------------------------------------------------------------- steps

    def _carry_out(self, taken: Taken) -> Report:
        command, step = taken.command, taken.command.steps[taken.step]
        context, error = taken.context, None
        outputs: dict[str, Any] = {}
        assert context is not None
        called_off = command.cancel and taken.step == 0 and step.verb not in _GOING_ON
        try:
            if called_off:
                raise final("cancelled", "Called off before it was begun.")
            if step.verb is Verb.GUEST_MIGRATE and command.guest and command.guest.destination:
                self.cloud.on_the_way(command.guest.destination["host"])
            if command.guest is not None:
                outputs = verbs.GUEST_VERBS[step.verb](context, command.guest)
            elif command.lane is not None:
                outputs = verbs.VERBS[step.verb](context, command.lane)
        except PortError as failure:
            error = failure.as_step_error()
        self.wants_registration |= step.verb in _CHANGING_GUESTS
        self.cloud.note(f"{self.name}: {command.flow} {step.name} {_said(error)}", command)
        return Report(
            operation_id=command.operation_id,
            run=command.run,
            epoch=command.epoch,
            step=step.name,
            took_ms=0,
            outputs=outputs,
            error=error,
        )

    def _deliver(self, taken: Taken, report: Report) -> None:
        key = (taken.command.id, taken.command.epoch)
        life = self.life
        try:
            goes_on = self.cloud.service.report(self.name, report, CONTEXT)[0]
        except (Crash, ConflictError):  # the ledger's: delivered again
            return
        except (errors.StaleReportError, errors.StaleEpochError) as stale:
            self.cloud.note(f"{self.name}: {stale.code}", taken.command)
            if self.life == life:
                self.taken.pop(key, None)
                self.wants_registration, self._after = True, 0
                if taken.context is not None and report.error is None:
                    command = _learn(taken.command, report.outputs)
                    _take_back(command, command.steps[taken.step], taken.context)
            return
        if self.life != life:
            return
        taken.owed = None
        if goes_on and report.error is None:
            taken.command, taken.step = _learn(taken.command, report.outputs), taken.step + 1
            return
        self.taken.pop(key, None)
        self._finished.add(key)


def _said(error: StepError | None) -> str:
    return "done" if error is None else f"{error.kind}: {error.code}"
