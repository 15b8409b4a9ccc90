"""Delivers the results of one run to the ledger.

Theory of operation.  Results wait here and are reported together, in order.  They are delivered
when the run ends or a step fails; before the next step, if a result must be durable by then
(CommandStep.durable); and otherwise when the first of them has waited for REPORT_AFTER_S.  The run
delivers them between two steps, the executor's own thread during a step, so that a long step does
not delay the results before it.  So a run without a connection to the ledger begins nothing more
after REPORT_AFTER_S.

If the agent dies, its next process repeats the steps without a delivered result.  It may then fail
at a step that the process before had already passed, so its reports say so (Report.further).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum, auto

import structlog

from host_agent.clock import Stopping
from host_agent.shared.contract.messages import Command, Report, StepResult

#: How long a result may wait for others to be delivered with.
REPORT_AFTER_S = 0.5

_LOG = structlog.get_logger(__name__)


class Verdict(Enum):
    """The ledger's answer to a report."""

    CONTINUE = auto()
    STOP = auto()  # the run is over
    STALE = auto()  # it does not expect this report: drop the run


class Reporting:
    """The results of a run that are not delivered yet.

    `send` delivers them, however long that takes, together with the present state of a changed
    guest (its server's id is the second argument).  If it raises, they stay here.
    """

    def __init__(
        self,
        send: Callable[[tuple[StepResult, ...], str | None], Verdict],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._clock = send, clock
        self._sending = threading.Lock()  # so that reports keep their order
        self._lock = threading.Lock()
        self._waiting: list[StepResult] = []
        self.due_at: float | None = None  # by the clock; None: nothing waits
        self.verdict = Verdict.CONTINUE

    def ended(self, result: StepResult, *, last: bool = False, durable: bool = False) -> bool:
        """Add a step's result; whether to deliver before the next step.

        `last`: it is the run's last result; `durable`: the next step needs it delivered.
        """
        with self._lock:
            self._waiting.append(result)
            if self.due_at is None:
                self.due_at = self._clock() + REPORT_AFTER_S
            return last or durable or self.due_at <= self._clock()

    def deliver(self, changed: str | None = None) -> Verdict:
        """Deliver all results that wait; the ledger's last answer."""
        with self._sending:
            with self._lock:
                results, self.due_at = tuple(self._waiting), None
            if results and self.verdict is Verdict.CONTINUE:
                self.verdict = self._send(results, changed)
            with self._lock:
                del self._waiting[: len(results)]
            return self.verdict


def report_of(command: Command, results: tuple[StepResult, ...], *, resumed: bool) -> Report:
    """The report of these results; `resumed`: the command may have been begun before."""
    return Report(
        operation_id=command.operation_id,
        run=command.run,
        epoch=command.epoch,
        results=results,
        further=resumed,
    )


def deliver_in_time(
    running: Callable[[], list[Reporting]], news: threading.Event, stop: threading.Event
) -> None:
    """Deliver what has waited for REPORT_AFTER_S, until `stop`; `news`: a result waits."""
    while not stop.is_set():
        waiting = [(each.due_at, each) for each in running() if each.due_at is not None]
        if not waiting:
            news.wait()
            news.clear()
            continue
        due_at, first = min(waiting, key=lambda pair: pair[0])
        if not stop.wait(due_at - time.monotonic()):
            try:
                first.deliver()
            except Stopping:
                pass  # the run gets it, too
            except Exception:  # noqa: BLE001 - its run reports later; other runs need this thread
                _LOG.exception("late_report_failed")
