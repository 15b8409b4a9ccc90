"""Runs commands: in order, one per (server, volume) at a time, each step reported.

Theory of operation.  Commands wait in a bounded queue.  A bounded number of worker threads take the
first command whose (server, volume) is free.  A command for a whole server waits for the commands
of all its volumes, and they wait for it.  So the runs of one pair keep the ledger's order, and the
others do not wait for each other.  A command is identified by id and epoch: one that is queued,
running, or recently finished is not taken again, however often the ledger sends it.

A command that is sent again with `cancel` ends a run in progress early, as far as its verb can.  A
run that has not begun here does not begin: its first step fails.  Only verbs whose work continues
by itself are called anyway, because an earlier agent process may have begun it; they end it.

A run holds its locks (locks.py) from before its first step until after its last report.  Reports
are retried until they are delivered (reporting.py).  The first failing step ends the run; the
ledger decides what follows.

No run is stored on disk.  If the agent is killed at any point, the ledger sends the unfinished
command again, and the verbs find out what is done.  A run that the ledger no longer knows
(`STALE`) is forgotten at once, so that the ledger can send it anew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from host_agent.clock import StopClock, Stopping
from host_agent.locks import Locks, names_for, names_for_guest
from host_agent.reporting import Reporting, Verdict, deliver_in_time, report_of
from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import (
    Command,
    GuestOrder,
    Occurred,
    Report,
    StepResult,
    Verb,
)
from host_agent.shared.contract.ports import (
    PortError,
    VolumeView,
)
from host_agent.steps import StepOutcome, do, result_of, take_back_made
from host_agent.verbs import GUEST_VERBS
from host_agent.verbs.cinder import wait_until
from host_agent.verbs.context import Ports, RunContext, Waits, final, is_missing
from host_agent.watch import RunWatch

#: Finished commands remembered, so that a late duplicate of one is not run again.
FINISHED_MAX = 10_000

_LOG = structlog.get_logger(__name__)
_ATTACHING = frozenset(
    {
        Verb.ATTACHMENT_CREATE,
        Verb.ATTACHMENT_UPDATE,
        Verb.ATTACHMENT_REFRESH,
        Verb.ATTACHMENT_CONVERT,
        Verb.VOLUME_CONNECT,
    }
)
#: These may change the inventory.
_CHANGING_GUESTS = frozenset({Verb.DISK_PLUG, Verb.DISK_UNPLUG, *GUEST_VERBS})
#: Their work continues when the agent dies.  If they are cancelled, they find it and end it.
_GOING_ON = frozenset({Verb.DISK_COPY, Verb.GUEST_MIGRATE})

_FENCED_SINCE = "this host was fenced after the command was given"

#: What makes two deliveries the same command.
Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    workers: int = 8
    queue_max: int = 64


@dataclass
class _Run:
    command: Command
    resumed: bool  # an earlier agent process, or an earlier run here, may have begun it
    watch: RunWatch
    reporting: Reporting
    #: The present step, and since when (monotonic); None: it waits for its locks.
    doing: tuple[str, float] | None = None


def _tell_nobody(_command: Command, _done_bytes: int, _total_bytes: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The executor's callbacks; called from worker threads.

    `report` returns when the ledger has acknowledged; its second argument is the server whose guest
    the run has changed since the last report.  `is_current`: whether an epoch is this host's.
    `progress`: of a long step, in bytes.  `guests_changed`: the inventory may have changed.
    `dropped`: a run ended without the ledger knowing.  `occurred`: the present time, if known.
    """

    report: Callable[[Report, str | None], Verdict]
    is_current: Callable[[int], bool] = lambda _epoch: True
    progress: Callable[[Command, int, int], None] = _tell_nobody
    guests_changed: Callable[[], object] = lambda: None
    dropped: Callable[[], object] = lambda: None
    occurred: Callable[[], Occurred | None] = lambda: None


class Executor:
    """Worker threads over a queue of commands.  All methods may be called from any thread."""

    def __init__(
        self,
        ports: Ports,
        locks: Locks,
        hooks: Hooks,
        *,
        limits: ExecutorLimits | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._ports = ports
        self._locks = locks
        self._hooks = hooks
        self._limits = limits or ExecutorLimits()
        self._waits = waits or Waits()
        self._stop = threading.Event()
        self._clock = StopClock(self._stop)
        self._lock = threading.Lock()
        self._waiting = threading.Condition(self._lock)  # a run may begin
        self._full = threading.Condition(self._lock)  # the queue has room
        self._queue: list[_Run] = []
        self._running: list[_Run] = []
        self._finished: OrderedDict[Key, None] = OrderedDict()
        self._news = threading.Event()  # a result waits to be reported
        self._threads = [
            threading.Thread(target=self._work, name=f"run-{number}", daemon=True)
            for number in range(self._limits.workers)
        ]
        in_time = (self._reportings, self._news, self._stop)
        self._threads.append(
            threading.Thread(target=deliver_in_time, args=in_time, name="reports", daemon=True)
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Begin nothing new, end waits, let running steps finish; whether all finished in time."""
        self._stop.set()
        self._news.set()
        with self._lock:
            self._queue.clear()
            self._waiting.notify_all()
            self._full.notify_all()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def submit(self, command: Command, *, resumed: bool = False) -> bool:
        """Queue a command, waiting for room; False for a duplicate, or if the executor stops.

        `resumed`: it may have been begun before.
        """
        run = self._new_run(command, resumed=resumed)
        with self._lock:
            if command.cancel:
                self._cancel(command)
            while len(self._queue) >= self._limits.queue_max and not self._stop.is_set():
                self._full.wait()
            if self._stop.is_set() or self._is_known(command):
                return False
            self._queue.append(run)
            self._waiting.notify()
            return True

    def state(self) -> list[str]:
        """The runs, for an operator (SIGUSR2).  Waits for no lock."""
        running = [_told(run) for run in [*self._running]]
        return [f"Runs: {len(running)} under way, {len(self._queue)} wait", *running]

    def forget_queued(self) -> None:
        """Drop what has not begun: after a registration the ledger sends it again."""
        with self._lock:
            self._queue.clear()
            self._full.notify_all()

    def _is_known(self, command: Command) -> bool:
        key = _key(command)
        active = [*self._queue, *self._running]
        return key in self._finished or any(_key(run.command) == key for run in active)

    def _cancel(self, command: Command) -> None:
        """Cancel the run if it is running; if it is queued, it will not begin."""
        for run in self._running:
            if _key(run.command) == _key(command):
                run.watch.cancel()
        for number, run in enumerate(self._queue):
            if _key(run.command) == _key(command):
                self._queue[number] = self._new_run(command, resumed=run.resumed)

    def _new_run(self, command: Command, *, resumed: bool) -> _Run:
        def send(results: tuple[StepResult, ...], changed: str | None) -> Verdict:
            return self._hooks.report(report_of(command, results, resumed=resumed), changed)

        watch = RunWatch(self._stop, lambda done, total: self._hooks.progress(command, done, total))
        if command.cancel:
            watch.cancel()
        return _Run(command, resumed, watch, Reporting(send))

    def _reportings(self) -> list[Reporting]:
        with self._lock:
            return [run.reporting for run in self._running]

    # --- workers ----------------------------------------------------------------------

    def _work(self) -> None:
        while (run := self._next()) is not None:
            with _logged(run.command):
                finished = self._run_safely(run)
            with self._lock:
                self._running.remove(run)
                if finished:
                    self._finished[_key(run.command)] = None
                while len(self._finished) > FINISHED_MAX:
                    self._finished.popitem(last=False)
            if not finished and not self._stop.is_set():
                self._hooks.dropped()

    def _next(self) -> _Run | None:
        """A new run wakes one thread, which wakes the next if more may begin."""
        with self._lock:
            while not self._stop.is_set():
                for number, run in enumerate(self._queue):
                    before = [*self._running, *self._queue[:number]]
                    if not any(_exclude(run.command, other.command) for other in before):
                        del self._queue[number]
                        self._running.append(run)
                        self._full.notify_all()
                        if self._queue:
                            self._waiting.notify()
                        return run
                self._waiting.wait()
        return None

    def _run_safely(self, run: _Run) -> bool:
        try:
            return self._run(run)
        except Stopping:
            _LOG.info("run_interrupted", why="the agent stops")
        except Exception:  # noqa: BLE001 - a worker must outlive whatever a run does
            _LOG.exception("run_crashed")
        return False

    def _run(self, run: _Run) -> bool:
        """Run the steps; whether the ledger has acknowledged the end of the run."""
        command = run.command = run.command.seeing(self._ledger_time())
        if not self._hooks.is_current(command.epoch):
            _LOG.warning("command_refused", epoch=command.epoch, why=_FENCED_SINCE)
            return False
        context = RunContext(
            **vars(self._ports),
            clock=self._clock,
            waits=self._waits,
            watch=run.watch,
            first=command.first and not run.resumed,
        )
        began = self._clock.now()
        try:
            _refuse_cancelled(run)
            with self._locks.hold(lock_names(context, command), self._clock):
                _refuse_cancelled(run)  # again: the wait for the locks may have been long
                return self._run_steps(run, context)
        except Stopping:
            run.reporting.deliver()
            raise
        except PortError as error:  # before any step: reported as the first one's result
            outcome = StepOutcome(error=error.as_step_error())
            result = result_of(command.steps[0], outcome, began, context, self._hooks.occurred)
            run.reporting.ended(result)
            return run.reporting.deliver() is not Verdict.STALE

    def _ledger_time(self) -> float | None:
        """The ledger's time, if it is known."""
        now = self._hooks.occurred()
        return None if now is None else now.at - now.offset_s

    def _run_steps(self, run: _Run, context: RunContext) -> bool:
        """Each step gets the outputs of those before it."""
        command, changed = run.command, None
        for step in command.steps:
            if self._stop.is_set():
                raise Stopping
            if not self._hooks.is_current(command.epoch):
                _LOG.warning("run_dropped", before=step.name, why=_FENCED_SINCE)
                return False
            run.doing = step.name, time.monotonic()
            result = do(command, step, context, self._hooks.occurred)
            if step.verb in _CHANGING_GUESTS:
                changed = command.server_id
                self._hooks.guests_changed()
            last = result.error is not None or step is command.steps[-1]
            if run.reporting.ended(result, last=last, durable=step.durable):
                run.reporting.deliver(changed)
                changed = None
            else:
                self._news.set()
            verdict = run.reporting.verdict
            if verdict is Verdict.STALE:
                _LOG.warning("run_dropped", after=step.name, why="the ledger refused its report")
                if result.error is None:
                    take_back_made(_learn(command, result.outputs), step, context)
                return False
            if verdict is Verdict.STOP or result.error is not None:
                return True
            command = _learn(command, result.outputs)
        return True


def _refuse_cancelled(run: _Run) -> None:
    """Raises FINAL `cancelled`, unless an earlier process may have begun a job that continues."""
    if run.watch.cancelled() and run.command.steps[0].verb not in _GOING_ON:
        raise final("cancelled", "Cancelled before it began.")


def _told(run: _Run) -> str:
    command, doing = run.command, "waits for its locks"
    if run.doing is not None:
        name, since = run.doing
        doing = f"{name}, {time.monotonic() - since:.1f} s"
    volume = f", volume {command.lane.volume_id}" if command.lane else ""
    return f"  operation {command.operation_id}, server {command.server_id}{volume}: {doing}"


def _logged(command: Command) -> AbstractContextManager[None]:
    """Bind the command's ids to all log records inside."""
    volume = {} if command.lane is None else {"volume": command.lane.volume_id}
    return bound_contextvars(
        operation=command.operation_id,
        server=command.server_id,
        request_id=command.request_id,
        **volume,
    )


def lock_names(context: RunContext, command: Command) -> list[str]:
    """The locks of a run, in order; Cinder names the targets of the volumes."""
    verbs = {step.verb for step in command.steps}
    if command.guest is None:
        assert command.lane is not None, "Command has seen to it"
        lane, attaching = command.lane, bool(verbs & _ATTACHING)
        return names_for(lane, _volume(context, lane, attaching=attaching))
    to_connect = _to_connect(command.guest, verbs)
    volumes = {lane.volume_id: _volume(context, lane, attaching=True) for lane in to_connect}
    return names_for_guest(command.guest, volumes)


def _volume(context: RunContext, lane: Lane, *, attaching: bool) -> VolumeView | VolumeSeen | None:
    """The volume, with the `service_uuid` that names its target's lock (S3), from the lane if it
    was seen lately.

    A new volume may get its `service_uuid` late, so an attaching run waits for it; a releasing run
    would gain nothing.  A volume that does not exist in Cinder has no target.
    """
    seen = lane.volume_seen
    if seen is not None and _has_lock_name(seen):
        context.volumes[seen.id] = seen
        return seen
    try:
        if attaching:
            return wait_until(context, lane.volume_id, _has_lock_name)
        # "": the lane of a whole server.
        return context.cinder.volume(lane.volume_id) if lane.volume_id else None
    except PortError as error:
        if is_missing(error):
            return None
        raise


def _key(command: Command) -> Key:
    return command.id, command.epoch


def _exclude(one: Command, other: Command) -> bool:
    """Whether these exclude each other: the same (server, volume), or a whole server."""
    if one.server_id != other.server_id:
        return False
    whole = one.lane is None or other.lane is None
    return whole or one.lane.volume_id == other.lane.volume_id  # type: ignore[union-attr]


def _learn(command: Command, outputs: dict[str, Any]) -> Command:
    """The command as the ledger would send it after these outputs."""
    return replace(command, lane=command.lane.learn(outputs)) if command.lane else command


def _to_connect(order: GuestOrder, verbs: set[Verb]) -> list[Lane]:
    """The lanes of a server that a run connects."""
    starts = Verb.GUEST_START in verbs and order.running
    return list(order.lanes) if starts or Verb.GUEST_SPAWN in verbs else []


def _has_lock_name(volume: VolumeView | VolumeSeen) -> bool:
    return volume.shared_targets is False or volume.service_uuid is not None
