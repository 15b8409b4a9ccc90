"""A host's agent as the simulation steps it: what link.py and executor.py do with threads.

It registers with an inventory that may be old by then, takes commands of its mailbox
into a queue, runs several beside each other under the real lock names, step by step, and
delivers each report until it is acknowledged.  A life ends with a crash, and with it all
that was not durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aggregates import errors
from handlers.engine.verbs import VERBS
from host_agent.executor import (
    _ATTACHING,
    _CHANGING_GUESTS,
    _GOING_ON,
    _exclude,
    _has_lock_name,
    _learn,
)
from host_agent.leftovers import LeftoversRelease
from host_agent.locks import Locks, names_for, names_for_guest
from host_agent.reporting import Reporting, Verdict, report_of
from host_agent.shared.contract import messages as contract
from host_agent.shared.contract.changes import Changes, reported, with_reported
from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import (
    Command,
    Guest,
    Occurred,
    Registration,
    Release,
    StepError,
    StepResult,
    Verb,
)
from host_agent.shared.contract.ports import PortError, VolumeView
from host_agent.shared.faults import Faults
from host_agent.shared.platform.clocks import FarClock
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests, SimulatedStorage
from host_agent.simulated.host_state import SCHEME
from host_agent.steps import take_back_made
from host_agent.storage.keys import KeyManagers
from host_agent.verbs.context import Ports, Waits, final
from host_agent.verbs.context import RunContext as AgentContext
from ledger.log.application import ConflictError
from tests.commands import carry_out, registered
from tests.memory import Crash, Tripwire
from tests.simulation.chance import Mortal
from tests.simulation.share import PatientGuests
from tests.world import CONTEXT, FIXED_KEY

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

SERVICE_VERSION = contract.SERVICE_VERSION
#: How often a result is reported before others have joined it (REPORT_AFTER_S has passed).
LATE_RATE = 0.3


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
    """The ledger's answer to an agent's question (ports.VolumeUsers)."""

    def __init__(self, cloud: Cloud, host: str) -> None:
        self._cloud, self._host = cloud, host

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        return self._cloud.service.others(self._host, volume_id, attachment_id)


@dataclass
class Taken:
    """A command that the agent has; `names` are its locks once it has begun.

    `owes`: nothing more is begun until what it has done is told.
    """

    command: Command
    reporting: Reporting
    resumed: bool
    names: frozenset[str] | None = None
    step: int = 0
    owes: bool = False
    busy: bool = False
    watch: Following = field(default_factory=Following)
    context: AgentContext | None = None
    ended: bool = False
    made: bool = False  # its last step succeeded
    changed: bool = False  # its guest, since the last report


class Agent:
    """One host's agent, through all its lives."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        self.cloud, self.name = cloud, name
        self.clock_ahead_s = 0.0  # the host's; of the true time
        self.ledger_clock = self._new_clock()
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
        self._shown: tuple[Guest, ...] | None = None  # the guests that the ledger knows of
        self._known_at: int | None = None  # commands until there may have been begun before
        self._ports = self._new_ports()
        self.ledger_clock = self._new_clock()

    def _new_clock(self) -> FarClock:
        """What its agent knows of the ledger's time: nothing, when it starts."""
        return FarClock(lambda: self.cloud.clock() + self.clock_ahead_s, self.cloud.clock)

    def _hear_the_time(self) -> None:
        """As with each answer of the ledger."""
        self.ledger_clock.heard(self.cloud.database_now(), self.ledger_clock.asking())

    def stop(self) -> None:
        """Dead: whoever is in the midst of something finds out at the next point."""
        self.lives, self.life = False, self.life + 1
        self.taken, self.epoch = {}, None

    def _new_ports(self) -> dict[str, Any]:
        cloud, name, life = self.cloud, self.name, self.life
        state = cloud.states[name]

        def lives() -> bool:
            return self.lives and self.life == life

        def tripped(what: str, port: Any) -> Any:
            mortal = Mortal(cloud.chance, lives)
            return Tripwire(what, port, lambda: mortal)

        cinder = tripped("cinder", cloud.late)
        return {
            "host": name,
            "cinder": cinder,
            "brick": tripped("brick", SimulatedBrick(state, Faults(), name)),
            "guests": tripped("guests", PatientGuests(cloud.files, state, name, lives)),
            "users": Users(cloud, name),
            "storage": SimulatedStorage(state, Faults(), name),
            "keys": tripped("keys", KeyManagers(FIXED_KEY)),
            "records": cloud.records[name],
            "sent": cloud.sent[name],
        }

    # --------------------------------------------------------- registration

    def register(self) -> None:
        """Look first, tell later: what is told may be no longer so."""
        if self._said is None:
            self.wants_registration = False
            guests = SimulatedGuests(self.cloud.states[self.name], self.cloud.reads, self.name)
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
        said = self.cloud.hostile.registered(self._said)
        if self._shown is not None:
            self._show_changes(said, self._shown)
            return
        try:
            open_ = partial(self.cloud.open_on_host, self.name)
            told = registered(self.cloud.service, self.name, said, CONTEXT, open_)
            shown = {guest.server_id for guest in said.guests}
            for server_id in sorted(self.cloud.guests_of_host(self.name) - shown):
                self.cloud.service.lost_guest(server_id, self.name, CONTEXT)
        except (Crash, ConflictError):  # the ledger's: the agent asks again
            return
        self._said, self._shown, host = None, said.guests, told.host
        if self._known_at is None:
            self._known_at = len(self.cloud.store.log)
        if host.epoch != self.epoch:
            self.taken = {k: t for k, t in self.taken.items() if t.names is not None}
            self.epoch, self._after = host.epoch, 0
        self.clearing = host.suspect and any(host.leftovers)
        if self.clearing:
            self._clear(Release(*host.leftovers, told.unknown))

    def _show_changes(self, said: Registration, shown: tuple[Guest, ...]) -> None:
        """Between registrations only what has changed is told."""
        changes = Changes.between(self.epoch or 0, shown, said.guests)
        try:
            again = self.cloud.service.changed(self.name, changes, CONTEXT)
        except (Crash, ConflictError):  # the ledger's: the agent tells it again
            return
        except errors.StaleEpochError:
            self._shown = None
            return
        self._said = None
        if not again:
            self._shown = said.guests

    def _clear(self, release: Release) -> None:
        world = Ports(**self._ports)
        self._shown = None
        clock = cast("Any", self.cloud.clock)
        self.wants_registration = True
        try:
            LeftoversRelease(world, cast("Locks", Unheld()), clock).clear(release)
        except PortError as error:
            self.cloud.note(f"{self.name}: leftovers not cleared: {error.code}")
        except Crash:
            self._crashed()

    def register_again(self) -> None:
        """It does so now and then, even if everything was shown before."""
        self.wants_registration, self._shown = True, None

    @property
    def owes_results(self) -> bool:
        return any(taken.reporting.due_at is not None for taken in self.taken.values())

    @property
    def registering(self) -> bool:
        return self.lives and (self.wants_registration or self._said is not None)

    # ------------------------------------------------------------- commands

    def poll(self) -> None:
        """Take what is new in the mailbox."""
        self._hear_the_time()
        row = self.cloud.folded.row("hosts", self.name)
        if self.epoch is None or row is None:
            return
        if row["epoch"] != self.epoch:
            self.wants_registration = True
        elif not row["fenced"]:
            after, asked = self._after, row["suspect"]
            for command in self.cloud.mailbox(self.name):
                only_asks = all(VERBS[step.verb].asks_only for step in command.steps)
                if command.position > after and (only_asks or not asked):
                    self._take(command)
            if asked:  # registering, it begins anew with the mailbox
                self._after = 0
                self.register_again()

    def _take(self, command: Command) -> None:
        self._after, key = command.position, (command.id, command.epoch)
        known = self.taken.get(key)
        if known is not None and command.cancel:
            known.watch.called_off = True
            if known.names is None:
                known.command = command
        if known is None and key not in self._finished:
            new = self._known_at is not None and command.position > self._known_at
            resumed = not new or command.cancel
            taken = self.taken[key] = Taken(command, self._reporting(command, resumed), resumed)
            taken.watch.called_off = command.cancel

    def _reporting(self, command: Command, resumed: bool) -> Reporting:
        def send(results: tuple[StepResult, ...], changed: str | None) -> Verdict:
            report = self.cloud.hostile.reported(report_of(command, results, resumed=resumed))
            guest = self._seen_now(changed) if changed else None
            try:
                said = replace(report, guest=guest)
                goes_on, shown = self.cloud.service.report(self.name, said, CONTEXT)
            except (errors.StaleReportError, errors.StaleEpochError) as stale:
                self.cloud.note(f"{self.name}: {stale.code}", command)
                return Verdict.STALE
            if guest is not None and shown and self._shown is not None:
                self._shown = with_reported(self._shown, guest)
            return Verdict.CONTINUE if goes_on else Verdict.STOP

        return Reporting(send, self.cloud.clock)

    def _seen_now(self, server_id: str) -> Guest | None:
        """What the report says of the guest; nothing while a registration has looked and not told
        yet: the line is one that shows at a time.
        """
        if self._said is not None or self._shown is None:
            return None
        guests = SimulatedGuests(self.cloud.states[self.name], self.cloud.reads, self.name)
        return reported(self._shown, guests.guest(server_id))

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
        """Begin a command, do its next step, or deliver what came of those before it."""
        if taken.names is None and not self._begin(taken):
            return
        life, taken.busy = self.life, True
        try:
            if taken.owes or self._is_late(taken):
                self._deliver(taken)
            else:
                self._carry_out(taken)
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
        reading = self.ledger_clock.reading()
        taken.command = taken.command.seeing(reading and reading[0] - reading[1])
        names = self._lock_names(taken.command)
        held = {name for other in self.taken.values() for name in other.names or ()}
        if names is None or names & held:
            return False
        taken.names = names
        of_lane = taken.command.lane
        seen = of_lane.seen if of_lane else ()
        taken.context = AgentContext(
            clock=self.cloud.clock,
            waits=Waits(),
            watch=taken.watch,
            first=taken.command.first and not taken.resumed,
            volumes={each.id: each for each in seen},
            **self._ports,
        )
        return True

    def _lock_names(self, command: Command) -> frozenset[str] | None:
        verbs_ = {step.verb for step in command.steps}
        attaching = bool(verbs_ & _ATTACHING) or Verb.GUEST_SPAWN in verbs_
        lanes = [command.lane] if command.lane else []
        if command.guest and Verb.GUEST_SPAWN in verbs_:
            lanes = [lane for lane in command.guest.lanes if lane.disk is None]
        views = {lane.volume_id: self._view(lane) for lane in lanes}
        if attaching and not all(view is None or _has_lock_name(view) for view in views.values()):
            return None
        if command.guest is not None:
            return frozenset(names_for_guest(command.guest, views))
        assert command.lane is not None
        return frozenset(names_for(command.lane, views[command.lane.volume_id]))

    def _view(self, lane: Lane) -> VolumeView | VolumeSeen | None:
        seen = lane.volume_seen
        if seen is not None and _has_lock_name(seen):
            return seen
        try:
            return self.cloud.direct.volume(lane.volume_id)
        except PortError:
            return None

    # ---------------------------------------------------------------- steps

    def _is_late(self, taken: Taken) -> bool:
        """What waits to be reported has waited for long enough: by chance, now and then."""
        return taken.reporting.due_at is not None and self.cloud.chance.random.random() < LATE_RATE

    def _carry_out(self, taken: Taken) -> None:
        command, step = taken.command, taken.command.steps[taken.step]
        assert taken.context is not None
        if command.cancel and taken.step == 0 and step.verb not in _GOING_ON:
            error = final("cancelled", "Cancelled before it began.").as_step_error()
            result = StepResult(step=step.name, took_ms=0, error=error)
        else:
            if step.verb is Verb.GUEST_MIGRATE and command.guest and command.guest.destination:
                self.cloud.on_the_way(command.guest.destination["host"])
            result = carry_out(command, step, taken.context)
            if step.verb is Verb.DISK_PLUG and self.name in self.cloud.doomed:
                self.cloud.doomed.remove(self.name)
                raise Crash
            if (reading := self.ledger_clock.reading()) is not None:
                at, offset_s, error_s = reading
                occurred = Occurred(at=at, offset_s=offset_s, error_s=error_s)
                result = replace(result, occurred=occurred)
                self.cloud.ended[command.operation_id, command.run, step.name] = self.cloud.clock()
        self.wants_registration |= step.verb in _CHANGING_GUESTS
        taken.changed |= step.verb in _CHANGING_GUESTS
        self.cloud.note(f"{self.name}: {command.flow} {step.name} {_said(result.error)}", command)
        taken.command, taken.step = _learn(command, result.outputs), taken.step + 1
        taken.made = result.error is None
        taken.ended = result.error is not None or taken.step == len(command.steps)
        taken.owes = taken.reporting.ended(result, last=taken.ended, durable=step.durable)

    def _deliver(self, taken: Taken) -> None:
        command, life = taken.command, self.life
        key = (command.id, command.epoch)
        try:
            verdict = taken.reporting.deliver(command.server_id if taken.changed else None)
        except (Crash, ConflictError):  # the ledger's: delivered again
            taken.owes = True
            return
        if self.life != life:
            return
        taken.owes = taken.changed = False
        if verdict is Verdict.CONTINUE and not taken.ended:
            return
        self.taken.pop(key, None)
        if verdict is Verdict.STALE:
            self.wants_registration, self._after, self._known_at = True, 0, None
            self._shown = None
            if taken.context is not None and taken.made:
                take_back_made(taken.command, taken.command.steps[taken.step - 1], taken.context)
        else:
            self._finished.add(key)


def _said(error: StepError | None) -> str:
    return "done" if error is None else f"{error.kind}: {error.code}"
