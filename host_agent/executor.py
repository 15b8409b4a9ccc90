"""Runs commands: in order, one per (server, volume) at a time, each step reported.

Theory of operation.  Commands wait in a bounded queue; a bounded number of worker
threads take the first whose (server, volume) is not being worked on.  So runs of one
pair keep the ledger's order, and others overtake freely.  A command is known by id,
epoch and position: one that is queued, running, or finished lately is not taken
again, however often it is handed out.

A run holds its locks (locks.py) from before its first step until after its last
report.  After each step its report is delivered, for as long as it takes, and only
the ledger's "continue" lets the next step begin: it is durable by then.  The first
failing step ends the run; what to do about it is the ledger's decision.

Nothing is kept on disk.  Killed at any point, the agent is handed the unfinished
command again, and the verbs find out what is done.  A run that the ledger does not
know any more (`STALE`) is forgotten at once, so that it may be handed out anew.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from host_agent import masking
from host_agent.context import Context, Stopping, Waits, is_missing
from host_agent.contract import Command, CommandStep, ErrorKind, Report, StepError, Verb
from host_agent.locks import Locks, names_for
from host_agent.log import bound
from host_agent.ports import Brick, Cinder, Guests, PortError, VolumeView
from host_agent.verbs import VERBS, wait_until

#: Finished commands remembered, so that a late duplicate of one is not run again.
FINISHED_MAX = 10_000

_LOG = logging.getLogger(__name__)
_ATTACHING = frozenset({Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT})
_MOVING_DISKS = frozenset({Verb.DISK_PLUG, Verb.DISK_UNPLUG})

#: What makes two deliveries the same command.
Key = tuple[str, int, int]


class Verdict(Enum):
    """What the ledger said to a report."""

    CONTINUE = auto()
    STOP = auto()  # the run is over
    STALE = auto()  # it does not expect this report: drop the run


@dataclass(frozen=True, kw_only=True)
class Limits:
    workers: int = 8
    queue_max: int = 64


@dataclass(frozen=True, kw_only=True)
class World:
    """The ports a run works on."""

    cinder: Cinder
    brick: Brick
    guests: Guests


def _nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Whom the executor talks to; called from worker threads.

    `report` returns when the ledger has acknowledged; `is_current` tells whether an
    epoch is this host's; `disks_moved` says that the inventory may have changed;
    `dropped` that a run ended without the ledger knowing.
    """

    report: Callable[[Report], Verdict]
    is_current: Callable[[int], bool] = lambda _epoch: True
    disks_moved: Callable[[], None] = _nothing
    dropped: Callable[[], None] = _nothing


class StopClock:
    """The real clock of runs; waiting ends with Stopping when `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopping


class Executor:
    """Worker threads over a queue of commands.  All methods may be called from any thread."""

    def __init__(
        self,
        world: World,
        locks: Locks,
        hooks: Hooks,
        *,
        limits: Limits | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._world = world
        self._locks = locks
        self._hooks = hooks
        self._limits = limits or Limits()
        self._waits = waits or Waits()
        self._stop = threading.Event()
        self._clock = StopClock(self._stop)
        self._changed = threading.Condition()
        self._queue: list[Command] = []
        self._running: dict[tuple[str, str], Command] = {}
        self._finished: OrderedDict[Key, None] = OrderedDict()
        self._threads = [
            threading.Thread(target=self._work, name=f"run-{number}", daemon=True)
            for number in range(self._limits.workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Begin nothing new, end waits, let running steps finish; whether all did in time."""
        self._stop.set()
        with self._changed:
            self._queue.clear()
            self._changed.notify_all()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def submit(self, command: Command) -> bool:
        """Queue a command, waiting for room; whether it was taken (no duplicate, not stopping)."""
        with self._changed:
            while len(self._queue) >= self._limits.queue_max and not self._stop.is_set():
                self._changed.wait()
            if self._stop.is_set() or self._is_known(command):
                return False
            self._queue.append(command)
            self._changed.notify_all()
            return True

    def forget_queued(self) -> None:
        """Drop what has not begun: after re-registration the ledger hands it out again."""
        with self._changed:
            self._queue.clear()
            self._changed.notify_all()

    def _is_known(self, command: Command) -> bool:
        key = _key(command)
        active = [*self._queue, *self._running.values()]
        return key in self._finished or any(_key(known) == key for known in active)

    # --- workers ----------------------------------------------------------------------

    def _work(self) -> None:
        while (command := self._next()) is not None:
            with bound(command):
                finished = self._run_safely(command)
            with self._changed:
                del self._running[_pair(command)]
                if finished:
                    self._finished[_key(command)] = None
                while len(self._finished) > FINISHED_MAX:
                    self._finished.popitem(last=False)
                self._changed.notify_all()
            if not finished and not self._stop.is_set():
                self._hooks.dropped()

    def _next(self) -> Command | None:
        with self._changed:
            while not self._stop.is_set():
                for command in self._queue:
                    if _pair(command) not in self._running:
                        self._queue.remove(command)
                        self._running[_pair(command)] = command
                        self._changed.notify_all()
                        return command
                self._changed.wait()
        return None

    def _run_safely(self, command: Command) -> bool:
        try:
            return self._run(command)
        except Stopping:
            _LOG.info("run left where it is: the agent stops")
        except Exception:  # noqa: BLE001 - a worker must outlive whatever a run does
            _LOG.error("run dropped by a bug in the agent:\n%s", _masked_traceback())
        return False

    def _run(self, command: Command) -> bool:
        """Run the steps; whether the ledger has acknowledged the end of the run."""
        if not self._hooks.is_current(command.epoch):
            _LOG.warning("command of epoch %d refused: this host was fenced since", command.epoch)
            return False
        context = Context(
            cinder=self._world.cinder,
            brick=self._world.brick,
            guests=self._world.guests,
            clock=self._clock,
            waits=self._waits,
        )
        began = self._clock.now()
        try:
            volume = self._volume_to_lock(context, command)
            with self._locks.hold(names_for(command.lane, volume), self._clock):
                return self._run_steps(command, context)
        except PortError as error:  # before any step: tell it as the first one's result
            report = self._report_of(command, command.steps[0], began, error=error.as_step_error())
            return self._hooks.report(report) is not Verdict.STALE

    def _volume_to_lock(self, context: Context, command: Command) -> VolumeView | None:
        """The volume, with the `service_uuid` that names its target's lock (S3).

        A new volume may get it late, so an attaching run waits for it; a releasing
        one cannot gain by waiting.  A volume that Cinder has forgotten has no target.
        """
        volume_id = command.lane.volume_id
        try:
            if any(step.verb in _ATTACHING for step in command.steps):
                return wait_until(context, volume_id, _has_lock_name)
            return context.cinder.volume(volume_id)
        except PortError as error:
            if is_missing(error):
                return None
            raise

    def _run_steps(self, command: Command, context: Context) -> bool:
        for step in command.steps:
            if self._stop.is_set():
                raise Stopping
            if not self._hooks.is_current(command.epoch):
                _LOG.warning("run dropped before %s: this host was fenced since", step.name)
                return False
            report = self._step(command, step, context)
            if step.verb in _MOVING_DISKS:
                self._hooks.disks_moved()
            verdict = self._hooks.report(report)
            if verdict is Verdict.STALE:
                _LOG.warning("run dropped after %s: the ledger does not expect it", step.name)
                return False
            if verdict is Verdict.STOP or report.error is not None:
                return True
        return True

    def _step(self, command: Command, step: CommandStep, context: Context) -> Report:
        began = self._clock.now()
        outputs: dict[str, Any] = {}
        failure: StepError | None = None
        try:
            outputs = VERBS[step.verb](context, command.lane)
        except Stopping:
            raise
        except PortError as error:
            failure = error.as_step_error()
        except Exception as error:  # noqa: BLE001 - ours or a library's: outcome unknown
            _LOG.error("step %s failed unexpectedly:\n%s", step.name, _masked_traceback())
            name = type(error).__name__
            failure = StepError(
                kind=ErrorKind.UNKNOWN,
                code="internal",
                message=f"Unexpected {name} in the agent: see its log.",
            )
        return self._report_of(command, step, began, outputs=outputs, error=failure)

    def _report_of(
        self,
        command: Command,
        step: CommandStep,
        began: float,
        *,
        outputs: dict[str, Any] | None = None,
        error: StepError | None = None,
    ) -> Report:
        took_ms = round((self._clock.now() - began) * 1000)
        if error is None:
            _LOG.info("step %s done in %d ms", step.name, took_ms)
        else:
            error = StepError(kind=error.kind, code=error.code, message=masking.mask(error.message))
            _LOG.warning(
                "step %s failed (%s, %s): %s", step.name, error.kind, error.code, error.message
            )
        return Report(
            operation_id=command.operation_id,
            run=command.run,
            epoch=command.epoch,
            step=step.name,
            took_ms=took_ms,
            outputs=outputs or {},
            error=error,
        )


def _key(command: Command) -> Key:
    return command.id, command.epoch, command.position


def _pair(command: Command) -> tuple[str, str]:
    return command.lane.server_id, command.lane.volume_id


def _has_lock_name(volume: VolumeView) -> bool:
    return volume.shared_targets is False or volume.service_uuid is not None


def _masked_traceback() -> str:
    return masking.mask(traceback.format_exc())
