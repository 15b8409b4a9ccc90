"""One run of the simulation: a storm of things that happen, and the calm after it.

While the storm lasts each tick is one small thing: a request, a step of the ledger or
of an agent, time that passes, a crash, a host that dies, is fenced, comes back, an
operator.  So operations of all servers are under way at once, and meet in every order.
In the calm nothing fails any more, every host comes back, and everything has to come
to its end by itself, or by retrying what is parked; then everything is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any
from uuid import UUID

from aggregates import errors
from aggregates.instance import Instance, VmState
from aggregates.operation import Operation, Outcome
from handlers.drift.predicates import reservation_unknown, volume_of_nobody
from handlers.drift.rows import AttachmentRow, Row, VolumeRow
from handlers.engine.plan import plan_of
from handlers.engine.verbs import PUT_OFF_MAX_S, VERBS
from handlers.requests import operator
from host_agent.shared.contract.ports import LATE_S
from ledger.core.dispatcher import LEASE_S
from ledger.log.application import ConflictError
from tests.memory import Crash
from tests.simulation.agent import Agent
from tests.simulation.clients import Clients
from tests.simulation.cloud import Cloud
from tests.simulation.drift import planted
from tests.simulation.hand import Hand
from tests.simulation.invariants import broken_at_rest, broken_on_hosts
from tests.simulation.late import TOO_LATE_S
from tests.simulation.processes import Process
from tests.simulation.works import Works
from tests.world import CONTEXT

TICKS = 600
#: How often a dispatcher is stopped where something else may happen meanwhile, for how long.
PAUSES = 0.3
PAUSE_TICKS = (0, 0, 5, 40)
#: How often a parked operation is retried in the calm before it counts as stuck.
RETRIES_MAX = 5
#: More than anything takes; what takes more goes in circles.
ROUNDS_MAX = 1000
FENCE_ATTEMPTS_MAX = 5
#: How likely a host is fenced while a guest is on its way there.
FENCED_ON_THE_WAY = 0.1
#: By how much a clock is set: NTP's steps, a virtual machine's pause, a wrong time zone.
SET_BY_S = (-7_200.0, -45.0, -1.0, 1.0, 45.0, 7_200.0)
#: How many actions a failure shows.
SHOWN = 60


class Storm:
    """Everything that happens in one run of a seed."""

    def __init__(self, seed: int, ticks: int = TICKS, *, by_hand: bool = True) -> None:
        """`by_hand`: somebody moves guests and copies volumes past the ledger."""
        self.seed, self.ticks, self.by_hand = seed, ticks, by_hand
        self.cloud = Cloud(seed)
        self.random = self.cloud.chance.random
        self.clients = Clients(self.cloud)
        #: What dispatchers have the leases of, and whose.
        self._advancing: dict[str, Process] = {}
        self._left_behind: set[str] = set()  # by a dispatcher that died, or is paused
        #: What was paused: how much had gone wrong until it went on.
        self._resumed: dict[str, int] = {}
        self._moving = False
        self.works = Works(self.cloud)
        self.hand = Hand(self.cloud, seed)
        # Agents and dispatchers work most of the time, else nothing ever gets anywhere.
        self._deeds: list[tuple[Callable[[], object], float]] = [
            (self.clients.ask_something, 12),
            (self.clients.let_go_together, 1),
            (self._dispatch, 25),
            (self._let_an_agent_work, 50),
            (self._let_an_agent_register, 8),
            (self._let_time_pass, 8),
            (self._retry_or_unwind, 3),
            (self._crash_an_agent, 1),
            (self._lose_a_host, 0.6),
            (self._fence_a_host, 1),
            (self._bring_a_host_back, 1.5),
            (self._unfence_a_host, 2),
            (self.works.begin_or_end, 3),
            (self.clients.cinder_migrates_something, 2),
            (self._set_a_clock, 0.5),
        ]

    # ------------------------------------------------------------------- runs

    def run(self) -> None:
        """All of it; AssertionError with the seed and what happened last."""
        self._checked(self._run)

    def blow(self) -> None:
        """The storm alone."""
        self._checked(self._blow)

    def _checked(self, run: Callable[[], None]) -> None:
        with self.cloud.chance.ids():
            try:
                run()
            except Exception as failure:
                last = "\n  ".join(self.cloud.actions[-SHOWN:])
                raise AssertionError(f"seed {self.seed}: {failure!r}\n  {last}") from failure

    def _blow(self) -> None:
        chance = self.cloud.chance
        chance.calm, chance.meanwhile = False, self._meanwhile
        self.cloud.on_the_way = self._while_a_guest_moves
        for _ in range(self.ticks):
            self._tick()
        chance.calm, self.cloud.on_the_way = True, lambda _host: None
        self.cloud.doomed.clear()
        self.cloud.note("--- the storm is over")
        self.works.end_all()
        self.hand.end()

    def blow_over(self) -> None:
        """The storm, until all is at rest; the servers that are left are still there."""
        self._checked(self._blow_over)

    def _run(self) -> None:
        self._blow_over()
        while asks := list(self.cloud.files.deletable()):  # whatever became of a snapshot
            self._must(asks)
        self._delete_everything()

    def _blow_over(self) -> None:
        self._blow()
        self._come_to_rest()
        self.hand.look_again()
        self._settle_servers()
        self._come_to_rest()

    def _meanwhile(self) -> None:
        """Somebody else is faster; or as much faster as one who is stopped makes possible."""
        if self._advancing and self.random.random() < PAUSES:
            self._pause()
        else:
            self._tick()

    def _tick(self) -> None:
        deeds, weights = zip(*self._deeds, strict=True)
        self.random.choices(deeds, weights)[0]()
        self.cloud.files.perhaps()
        if self.by_hand:
            self.hand.perhaps()
        self.cloud.rejoin()
        self.works.forget_muddled()
        if broken := [*broken_on_hosts(self.cloud), *self.hand.broken()]:
            raise AssertionError(f"broken on hosts: {broken}")

    # ------------------------------------------------------------------ deeds

    def _dispatch(self) -> None:
        """A dispatcher takes what is due; nobody else works on it meanwhile (leases)."""
        due = [id_ for id_ in self.cloud.due() if id_ not in self._advancing]
        if due:
            self._advance(self.random.choice(due))

    def _pause(self) -> None:
        """A process stands still in the midst of something until its leases are another's, and
        for longer; then it goes on where it stood.
        """
        operation_id = self.random.choice(sorted(self._advancing))
        held, self._advancing = self._advancing, {}
        cloud, processes = self.cloud, self.cloud.processes
        processes.paused = held[operation_id]
        cloud.happened["paused process"] += 1
        cloud.note(f"{processes.paused.name} is paused at [{operation_id[:8]}]")
        cloud.clock.wait(LEASE_S)
        self._left_behind.add(operation_id)
        try:
            self._advance(operation_id)
            for _ in range(self.random.choice(PAUSE_TICKS)):
                self._tick()
        finally:
            processes.paused, self._advancing = None, held
            self._resumed[operation_id] = cloud.chance.troubled
        cloud.note(f"it goes on at [{operation_id[:8]}]")

    def _advance(self, operation_id: str) -> None:
        process = self.cloud.processes.takes(operation_id)
        self._advancing[operation_id] = process
        try:
            if operation_id in self._left_behind:
                process.service.on_dispatcher_lost(operation_id)
                self.cloud.clock.wait(LATE_S)
            process.service.advance(operation_id)
            self._left_behind -= {operation_id} - self._resumed.keys()  # if overtaken, another's
        except (Crash, ConflictError):
            self._left_behind.add(operation_id)
            self.cloud.note(f"a dispatcher dies at [{operation_id[:8]}]")
        finally:
            self._advancing.pop(operation_id, None)
            troubled = self._resumed.pop(operation_id, self.cloud.chance.troubled)
            if troubled < self.cloud.chance.troubled:  # perhaps it did not take back what it made
                self.cloud.overtaken.add(self.cloud.server_of(operation_id))

    def _let_an_agent_work(self) -> None:
        agents = [agent for agent in self.cloud.agents.values() if agent.lives]
        for agent in agents:
            agent.poll()
        ready = [(agent, taken) for agent in agents for taken in agent.ready()]
        if ready:
            agent, taken = self.random.choice(ready)
            agent.step(taken)

    def _let_an_agent_register(self) -> None:
        waiting = [agent for agent in self.cloud.agents.values() if agent.registering]
        if waiting:
            self.random.choice(waiting).register()

    def _let_time_pass(self) -> None:
        seconds = self.random.choice([0.1, 1.0, 10.0, self.cloud.next_due_in_s() or 0.0])
        self.cloud.clock.wait(seconds)

    def _set_a_clock(self) -> None:
        """The database's, or a host's: put right, or wrong, or another machine's from now on."""
        by_s = self.random.choice(SET_BY_S)
        if self.random.random() < 0.5:
            self.cloud.set_database_clock(by_s)
        else:
            self.random.choice(list(self.cloud.agents.values())).clock_ahead_s += by_s
            self.cloud.happened["clock set"] += 1

    def _retry_or_unwind(self) -> None:
        """What an operator, or a user who has changed their mind, does."""
        parked = self.cloud.operations("parked")
        if self.random.random() < 0.3:
            parked += [each for each in self.cloud.operations("running") if operator.waits(each)]
        act = "retry" if self.random.random() < 0.8 else "unwind"
        operations = parked if act == "retry" else self.cloud.operations("parked", "running")
        if operations:
            self._act(str(self.random.choice(operations).id), act)

    def _act(self, operation_id: str, act: str, **step: Any) -> bool:
        """Whether it was done."""
        try:
            self.cloud.service.act(operation_id, act, "see below", CONTEXT, **step)
            said = "done"
        except errors.IllegalTransitionError:
            raise
        except (Crash, ConflictError, errors.DomainError) as refusal:
            said = type(refusal).__name__
        self.cloud.note(f"operator: {act} [{operation_id[:8]}]: {said}")
        return said == "done"

    # ------------------------------------------------------------------ hosts

    def _crash_an_agent(self) -> None:
        """Half of the time one of which nobody knows yet what it has done."""
        agents = [agent for agent in self.cloud.agents.values() if agent.lives]
        untold = [agent for agent in agents if agent.owes_results]
        among = self.random.choice([agents, untold]) or agents
        if among:
            agent = self.random.choice(among)
            self.cloud.note(f"{agent.name}: the agent is killed and starts again")
            agent.start()

    def _lose_a_host(self) -> None:
        """Its agent is gone; perhaps all of it."""
        lives = [agent for agent in self.cloud.agents.values() if agent.lives]
        if len(lives) <= len(self.cloud.agents) // 2:
            return
        agent = self.random.choice(lives)
        agent.stop()
        off = self.random.random() < 0.5
        self.cloud.note(f"{agent.name}: {'loses power' if off else 'the agent is gone'}")
        if off:
            self.cloud.power_off(agent.name)

    def _fence_a_host(self) -> None:
        """It is switched off, or cut off from storage and network: then it goes on alone."""
        down = [agent.name for agent in self.cloud.agents.values() if not agent.lives]
        if down:
            self._shut_out(self.random.choice(down))

    def _while_a_guest_moves(self, destination: str) -> None:
        """Anything may happen; the worst is a fence of the host that it goes to."""
        if self._moving:
            return
        self._moving = True
        try:
            for _ in range(self.random.choice([0, 0, 0, 5])):
                self._tick()
            if self.random.random() < FENCED_ON_THE_WAY:
                self.cloud.agents[destination].stop()
                self._shut_out(destination)
        finally:
            self._moving = False

    def _shut_out(self, name: str) -> None:
        if self.random.random() < 0.5:
            self.cloud.power_off(name)
            self._fence(name)
            return
        guests = self.cloud.live_guests(name)
        self.cloud.isolated[name] = guests
        self._fence(name)
        self.cloud.isolated[name] = guests  # other ticks may have come in between: no fence yet

    def _fence(self, name: str) -> None:
        """Whoever gets no answer asks again."""
        service, isolated = self.cloud.service, sorted(self.cloud.isolated)
        self.cloud.note(f"operator: fence {name}, isolated: {isolated}")
        for _ in range(FENCE_ATTEMPTS_MAX):
            try:
                service.fence(name, "is down", "seen", CONTEXT)
                for operation_id in self.cloud.open_on_host(name):
                    service.on_host_fenced(operation_id, name, CONTEXT)
            except (Crash, ConflictError):
                continue
            return

    def _bring_a_host_back(self) -> None:
        """What was cut off meets the world again only when it is told what to let go."""
        down = [agent for agent in self.cloud.agents.values() if not agent.lives]
        if down:
            agent = self.random.choice(down)
            self.cloud.note(f"{agent.name}: is back")
            agent.start()

    def _unfence_a_host(self) -> None:
        """A host that is back: what it still holds of others it clears before it works."""
        rows = self.cloud.rows("hosts")
        back = [r["host"] for r in rows if r["fenced"] and self.cloud.agents[r["host"]].lives]
        if back:
            self._unfence(self.random.choice(back))

    def _unfence(self, name: str) -> None:
        self.cloud.note(f"operator: unfence {name}")
        with suppress(Crash, ConflictError):
            self.cloud.service.change_host(name, methodcaller("unfence", "it is well"), CONTEXT)

    # ------------------------------------------------------------------- calm

    def _come_to_rest(self) -> None:
        retries: Counter[str] = Counter()
        for again in range(3):
            if again:
                self._drop_unseen()
                for instance in list(self.cloud.files.on_former_files()):
                    self.clients.act("reboot", instance)
            # An inventory is told again after a while, even if it is the same: what was not
            # looked at before, because a flow was changing it, is looked at now.
            for agent in self.cloud.agents.values():
                agent.register_again()
            for _ in range(ROUNDS_MAX):
                if not self._go_on(retries):
                    break
            else:
                raise AssertionError("does not come to rest")
        if broken := list(broken_at_rest(self.cloud)):
            raise AssertionError("broken at rest:\n  " + "\n  ".join(broken))

    def _drop_unseen(self) -> None:
        """An old read, or half a list, hid from an undo what it looked for, or a guest that a host
        was to let go of: looks find it.
        """
        if self._were_reads_wrong:
            self.hand.repair(lambda row: _is_unseen(row) and not planted(self.cloud, row))
            self.hand.undefine_strangers()

    @property
    def _were_reads_wrong(self) -> bool:
        return bool({"cut read", "stale read"} & self.cloud.happened.keys())

    def _go_on(self, retries: Counter[str]) -> bool:
        """One round of everybody; whether there was anything to do."""
        cloud = self.cloud
        agents = list(cloud.agents.values())
        for agent in agents:
            if not agent.lives:
                self._bring_a_host_back()
                return True
        worked = cloud.files.go_on()
        cloud.rejoin()
        while self.clients.unanswered:
            self.clients.answer(self.clients.unanswered.pop(0))
            worked = True
        for agent in agents:
            worked = self._shown(agent) or worked
        known = len(cloud.store.log)
        for operation_id in cloud.due():
            self._advance(operation_id)
        # After a step of the database's clock a row may say "due" a moment too early.
        worked = worked or len(cloud.store.log) > known
        for agent in agents:
            agent.poll()
            for taken in agent.ready():
                agent.step(taken)
                worked = True
        return worked or self._nudge(retries)

    def _shown(self, agent: Agent) -> bool:
        """A host shows what it has; whether that was news, or it has to let go of some of it."""
        known = len(self.cloud.store.log)
        for _ in ("it looks", "it tells what has changed", "or all"):
            if agent.registering:
                agent.register()
        return len(self.cloud.store.log) > known or agent.clearing

    def _nudge(self, retries: Counter[str]) -> bool:
        """Nobody has anything to do now: time, or an operator, has to help."""
        cloud = self.cloud
        for row in cloud.rows("hosts"):
            if row["fenced"]:
                self._unfence(row["host"])
                return True
        due_in_s = cloud.next_due_in_s()
        if due_in_s is not None:
            if self._were_reads_wrong and self.hand.undefine_strangers():
                return True
            assert due_in_s <= PUT_OFF_MAX_S, f"put off for {due_in_s:.0f} s"
            cloud.clock.wait(due_in_s)
            return True
        # An operator; one may be in the way of another's retry: that does not count as a retry.
        return any(self._retry(str(each.id), retries) for each in cloud.operations("parked"))

    def _retry(self, operation_id: str, retries: Counter[str]) -> bool:
        if retries[operation_id] >= RETRIES_MAX:
            return False
        self.hand.pull(self.cloud.look_at(Operation, UUID(operation_id)))
        done = self._skip_in_vain(operation_id) or self._act(operation_id, "retry")
        retries[operation_id] += done
        return done

    def _skip_in_vain(self, operation_id: str) -> bool:
        """What is to be put back in a guest that a fence ended in somebody's hands is passed over:
        it comes back where the guest starts next.
        """
        operation = self.cloud.look_at(Operation, UUID(operation_id))
        step = next(iter(operator.left(operation)), None)
        if step is None or operation.about().server_id not in self.cloud.vanished:
            return False
        puts_back = (
            step.undo
            and VERBS[plan_of(operation).planned(step.step, undo=step.undo)].remnant is None
        )
        return puts_back and self._act(operation_id, "skip", lane=step.lane, step=step.step)

    # ------------------------------------------------------------------ after

    def _settle_servers(self) -> None:
        """Whatever a server went through, it can be had: every one runs in the end."""
        way = {
            VmState.RESIZED: ("confirm_resize", "revert_resize"),
            VmState.SHELVED_OFFLOADED: ("unshelve",),
            VmState.STOPPED: ("start",),
        }
        self._make_anew()
        for _ in range(len(way)):
            self._must(
                partial(self._ask, way[instance.vm_state], instance)
                for instance in self.cloud.known_servers()
                if instance.vm_state in way and instance.vacant_root is None
            )
        self.cloud.vanished.clear()
        self.cloud.note("--- every server runs")

    def _make_anew(self) -> None:
        """Whose guest has vanished in somebody's hands has it defined again."""
        vanished = [each for each in self.cloud.known_servers() if each.is_unaccounted]
        self._must(partial(self.clients.act, _anew(instance), instance) for instance in vanished)

    def _ask(self, flows: tuple[str, ...], instance: Instance) -> None:
        self.clients.act(self.random.choice(flows), instance)

    def _must(self, asks: Iterable[Callable[[], None]]) -> None:
        """Nothing is in the way any more: all of this is accepted, and completes.

        Only one that shares a volume with another has to wait for it.
        """
        before = len(self.cloud.rows("operations"))
        for number, ask in enumerate(asks, before + 1):
            ask()
            if self.cloud.actions[-1].endswith(": claimed"):
                self._come_to_rest()
                ask()
            assert len(self.cloud.rows("operations")) == number, self.cloud.actions[-1]
        self._come_to_rest()
        for operation in self.cloud.operations()[before:]:
            why = operation.first_error
            assert operation.outcome is Outcome.COMPLETED, f"{operation.id} did not: {why}"

    def _delete_everything(self) -> None:
        """Nothing is left of anything (but volumes that were to stay)."""
        self.cloud.clock.wait(TOO_LATE_S[1])  # no request is under way any more
        servers = [str(instance.id) for instance in self.cloud.instances()]
        self._must(partial(self.clients.delete, server_id) for server_id in servers)
        assert not self.cloud.cinder.attachments, "attachments are left"
        for name, state in self.cloud.states.items():
            seen = state.read()
            assert not seen["guests"], f"guests are left on {name}"
            assert not seen["connected"], f"connections are left on {name}"


def _is_unseen(row: Row) -> bool:
    match row:
        case AttachmentRow():
            return reservation_unknown(row)
        case VolumeRow():
            return volume_of_nobody(row)
    return False


def _anew(instance: Instance) -> str:
    """What defines a guest that no host has: Nova rebuilds no server that is paused."""
    return "reboot" if instance.vm_state is VmState.PAUSED else "rebuild"
