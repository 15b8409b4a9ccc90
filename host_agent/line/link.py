"""The agent's connection to the ledger: registers, subscribes to commands, delivers reports.

Theory of operation.  It sends these, each retried until it succeeds, with bounded exponential
back-off and jitter:

- the registration (`PUT /v1/hosts/{host}`): the host's identity and its whole inventory, at the
  start, after a lost connection, when the ledger says that the epoch is stale, and periodically.
  In between only the changes of the inventory (`POST .../guests`).  Only one thread sends either,
  so an older inventory never overtakes a newer one.  A guest that a run has changed goes with the
  run's report; that thread reads and sends it under `_showing`, like the other thread.  It is sent
  as a normal change if the lock is not free, without an answer, or if an older ledger does not
  confirm it.  An inventory that could not be read is not sent, because a guest that is missing in
  it counts as gone.  The answer may name leftovers (decision 0027): they are cleared, and reported
  as cleared, before the first poll for commands.
- the subscription (`GET .../commands`, long poll): the cursor is the highest position seen.  After
  each lost connection it returns to 0, and the ledger sends all unfinished commands; the executor
  recognises those that are in progress.
- the reports (`POST .../reports`), and the request for a volume's other users on this host
  (`GET .../volumes/{id}/users`), each by the worker thread that needs the answer.

Progress (`POST .../progress`) is sent once and may be lost.  A separate thread makes and sends a
survey that the ledger requests (surveys.py).

Two threads register and poll.  There is no event loop, because each hand-over between threads costs
more than the call.  `_state` guards what they share.  A thread that loses the ledger begins a new
`_life`: a poll of an earlier life is aborted, and its result does not move the cursor.

The memory used does not depend on how long the ledger is down: nothing is polled while the
executor's queue is full, and each worker holds one report.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import structlog

from host_agent.clock import Stopping
from host_agent.line.client import (
    REQUEST_S,
    LedgerClient,
    LinkError,
    LinkSettings,
    credentials_of,
)
from host_agent.line.last_position import LastPosition
from host_agent.line.surveys import Look, Surveys
from host_agent.reporting import REPORT_AFTER_S, Verdict
from host_agent.shared.contract.backoff import Backoff
from host_agent.shared.contract.changes import Changes, reported, with_reported
from host_agent.shared.contract.messages import (
    SURVEY_HEADER,
    TOLD_HEADER,
    Command,
    Commands,
    ErrorKind,
    Guest,
    Occurred,
    Progress,
    Registered,
    Registration,
    Release,
    Report,
    StepError,
    Taken,
    Users,
)
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.wire import WireError, plain, read
from host_agent.shared.platform.clocks import FarClock

#: A changed inventory is sent at most this often, and after the report of the run that changed it.
INVENTORY_PAUSE_S = REPORT_AFTER_S + 0.2
#: An unchanged one is sent again after so many seconds, because the ledger may take it differently
#: by then (a guest came here while its former host still showed it).  Earlier, if the ledger asks.
REGISTER_AGAIN_S = 300.0

#: The timeout of a progress report, which delays the step that sends it.
PROGRESS_S = 2.0

_LOG = structlog.get_logger(__name__)
T = TypeVar("T")


class RegisterAgainError(Exception):
    """The ledger wants another registration: the epoch is old, or the host was unfenced."""


class CommandRunner(Protocol):
    """Takes commands: the executor."""

    def submit(self, command: Command, *, resumed: bool) -> bool: ...
    def forget_queued(self) -> None: ...


class Link:
    """One ledger, one host.  `run` until closed; all other methods from any thread."""

    def __init__(
        self,
        settings: LinkSettings,
        describe: Callable[[], Registration],
        look: Look,
        guest: Callable[[str], Guest | None],
    ) -> None:
        """`describe` makes the registration; `look` the survey of an epoch; `guest` reads one guest
        by its server's id.
        """
        self._settings = settings
        self._describe, self._guest = describe, guest
        self._surveys = Surveys(look, self._call, self._backoff)
        self._told = LastPosition(settings.told_path)
        self.ledger_clock = FarClock()
        self.credentials = credentials = credentials_of(settings, self.ledger_clock)
        ring = settings.ring()  # shared: both avoid a process that does not answer
        self._ledger = LedgerClient(settings, self.ledger_clock, credentials, ring)
        # Separate, so that a poll can be aborted alone.
        self._polls = LedgerClient(settings, self.ledger_clock, credentials, ring)
        self._wanted = threading.Event()  # the inventory may have changed
        self._showing = threading.Lock()  # held from a read of guests until the ledger has it
        self._sent: Registration | None = None  # what the ledger has; None: send everything
        self._closing = threading.Event()
        self._state = threading.Condition()
        self._epoch: int | None = None
        self._registered = False
        self._faults: set[str] = set()  # parts whose last call failed by a fault of the agent
        self._life = 0
        self._after = 0
        self._known_at: int | None = None  # commands up to this position may have been begun before
        self._resync_backoff = self._backoff()

    @property
    def registered(self) -> bool:
        """Whether the host is registered, the ledger was not lost since, and no part of this class
        fails by its own fault (which is retried, and otherwise only logged).
        """
        return self._registered and not self._faults

    # --- for runs -----------------------------------------------------------------------

    def is_current(self, epoch: int) -> bool:
        return epoch == self._epoch

    def occurred(self) -> Occurred | None:
        """The present time by both clocks; None before the ledger has sent its time."""
        if (reading := self.ledger_clock.reading()) is None:
            return None
        at, offset_s, error_s = reading
        return Occurred(at=at, offset_s=offset_s, error_s=error_s)

    def wake(self) -> None:
        """The inventory may have changed."""
        self._wanted.set()

    def resync(self) -> None:
        """Register and get all unfinished commands again: a run was dropped without a known end."""
        # With growing pauses, because a command may be dropped each time.
        later = threading.Timer(self._resync_backoff.next_s(), self._lost)
        later.daemon = True
        later.start()

    def report(self, report: Report, changed: str | None = None) -> Verdict:
        """Deliver a report; the ledger's answer.  Raises Stopping.

        `changed`: the server whose guest the run has changed.
        """
        with self._noting("report"):
            heard = self._report_with_guest(report, changed) if changed else None
            status, answer = heard or self._insist("POST", "/reports", report)
        if status == HTTPStatus.OK and (taken := _understood(answer, Taken)):
            self._resync_backoff.reset()
            return Verdict.CONTINUE if taken.goes_on else Verdict.STOP
        if answer.get("code") == "stale_epoch":
            self._lost()
        elif status != HTTPStatus.CONFLICT:
            _LOG.error(
                "report_refused",
                operation=report.operation_id,
                run=report.run,
                step=report.results[0].step,
                status=status,
                code=answer.get("code"),
            )
        return Verdict.STALE

    def _report_with_guest(
        self, report: Report, server_id: str
    ) -> tuple[int, dict[str, Any]] | None:
        """The answer to a report with the changed guest; None: send it without."""
        if not self._showing.acquire(blocking=False):
            return None
        try:
            sent = self._sent
            guest = reported(sent.guests, self._guest(server_id)) if sent else None
            if sent is None or guest is None:
                return None
            status, answer = self._call("POST", "/reports", replace(report, guest=guest))
            if answer.get("shown"):
                self._sent = replace(sent, guests=with_reported(sent.guests, guest))
        except (PortError, LinkError):
            return None
        finally:
            self._showing.release()
        return (status, answer) if status == HTTPStatus.OK else None

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        """See ports.VolumeUsers.  Raises Stopping."""
        path = f"/volumes/{quote(volume_id)}/users?attachment_id={quote(attachment_id)}"
        status, answer = self._insist("GET", path)
        if status == HTTPStatus.OK and (users := _understood(answer, Users)):
            return list(users.servers)
        raise PortError(
            ErrorKind.RETRYABLE,
            "users_unknown",
            f"The ledger does not say who else uses volume {volume_id} on this host "
            f"(HTTP {status} {answer.get('code', '')!r}): is it of this agent's version?",
        )

    def progress(self, command: Command, done_bytes: int, total_bytes: int) -> None:
        """Report the progress of a long step, once."""
        told = Progress(
            operation_id=command.operation_id,
            run=command.run,
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )
        with suppress(LinkError, Stopping):
            self._call("POST", "/progress", told, timeout_s=PROGRESS_S)

    # --- life -----------------------------------------------------------------------------

    def run(self, runner: CommandRunner, clear: Callable[[Release], None]) -> None:
        """Register and poll until closed; `runner` gets the commands, `clear` the leftovers."""
        # A daemon, not joined: a survey may hang.
        threading.Thread(target=self._surveys.run, name="surveys", daemon=True).start()
        with ThreadPoolExecutor(2, thread_name_prefix="line") as threads:
            lines = [
                threads.submit(self._keep_registered, runner, clear),
                threads.submit(self._take_commands, runner),
            ]
            wait(lines, return_when=FIRST_COMPLETED)
            self.close()
        for line in lines:
            line.result()

    def close(self) -> None:
        """End `run`; reports still undelivered raise Stopping in their threads."""
        self._closing.set()
        self._wanted.set()
        self._surveys.close()
        with self._state:
            self._state.notify_all()
        for client in (self._ledger, self._polls):
            client.close()

    # --- registration -----------------------------------------------------------------------

    def _keep_registered(self, runner: CommandRunner, clear: Callable[[Release], None]) -> None:
        backoff = self._backoff()
        again_at = 0.0
        while not self._closing.is_set():
            self._wanted.clear()
            try:
                with self._showing, self._noting("registration"):
                    release, again_at = self._show(runner, again_at)
                if release:
                    clear(release)
                    self._closing.wait(backoff.next_s())  # then show what is left
                    continue
                backoff.reset()
            except PortError as error:
                _LOG.error("not_registered", code=error.code, why=error.message)
                self._closing.wait(backoff.next_s())
                continue
            except LinkError as error:
                self._pause(error, backoff)
                continue
            except Stopping:  # while leftovers were cleared: reports may still be delivered
                self._closing.wait()
            except Exception:  # noqa: BLE001 - a restart would end the runs in progress, and not help
                _LOG.exception("registration_failed")
                self._closing.wait(backoff.next_s())
                continue
            if self._wanted.wait(self._settings.inventory_interval_s):
                self._closing.wait(INVENTORY_PAUSE_S)  # a burst of events is one change

    def _show(self, runner: CommandRunner, again_at: float) -> tuple[Release, float]:
        """Send the inventory, or what has changed.  Returns the leftovers to clear before the host
        is registered, and when to send all of it again (monotonic).
        """
        now = self._describe()
        if not self._registered or time.monotonic() >= again_at:
            self._sent = None
        if self._sent is not None:
            self._sent = self._show_changes(now, self._sent)
        if self._sent is not None:
            return Release(), again_at
        release, again = self._register(now, runner)
        if not release:
            self._sent = now
        return release, time.monotonic() + (0.0 if again else REGISTER_AGAIN_S)

    def _show_changes(self, now: Registration, sent: Registration) -> Registration | None:
        """What the ledger has after this; None: send everything.

        Connections matter only in a registration (what a suspect host has to release follows from
        them), so a change of them alone is not sent.
        """
        if replace(now, guests=(), connections=()) != replace(sent, guests=(), connections=()):
            return None
        changes = Changes.between(self._epoch or 0, sent.guests, now.guests)
        if not changes.guests and not changes.gone:
            return sent
        status, answer = self._call("POST", "/guests", changes)
        if status != HTTPStatus.OK:  # another epoch, or an older ledger
            return None
        return sent if answer.get("again") else replace(sent, guests=now.guests)

    def _register(self, registration: Registration, runner: CommandRunner) -> tuple[Release, bool]:
        """Returns the leftovers to clear first (none: the host is registered), and whether the
        ledger wants the inventory again.
        """
        told_before = self._told.header
        more = {TOLD_HEADER: told_before} if told_before else {}
        status, answer = self._call("PUT", "", registration, REQUEST_S, **more)
        if status != HTTPStatus.OK:
            parts = (answer.get("code"), answer.get("detail"), answer.get("hint"))
            why = " ".join(str(each) for each in parts if each)
            raise LinkError(f"the ledger refuses the registration (HTTP {status}): {why}")
        told = _understood(answer, Registered)
        if told is None:
            raise LinkError("the ledger's answer to the registration is not understood")
        if self._epoch != told.epoch:
            self._epoch = told.epoch
            runner.forget_queued()  # given under another epoch
        self._told.registered(told.epoch, told.position)
        if told.fenced:
            _LOG.warning(
                "host_fenced",
                host=self._settings.host,
                hint="no work until an operator unfences it",
            )
        if told.release:
            self._lost()
            return told.release, False
        with self._state:
            first, self._registered = not self._registered, True
            if first:
                self._after, self._known_at = 0, told.position
                self._state.notify_all()
        if first:
            host, guests = self._settings.host, len(registration.guests)
            _LOG.info("registered", host=host, epoch=told.epoch, guests=guests)
        return told.release, told.again

    def _lost(self) -> None:
        """Register again before anything else, and abort a poll in progress."""
        with self._state:
            self._life += 1
            self._registered = False
        self._wanted.set()
        self._polls.abort()

    # --- commands -----------------------------------------------------------------------------

    def _take_commands(self, runner: CommandRunner) -> None:
        backoff = self._backoff()
        while not self._closing.is_set():
            with self._state:
                self._state.wait_for(lambda: self._registered or self._closing.is_set())
                life, after = self._life, self._after
            try:
                with self._noting("poll"):
                    self._poll(runner, life, after)
                backoff.reset()
            except RegisterAgainError as error:
                _LOG.warning("registration_awaited", why=str(error))
                self._lost()
                self._closing.wait(backoff.next_s())
            except LinkError as error:
                if life == self._life:  # else another thread has aborted the poll
                    self._lost()
                    self._pause(error, backoff)
            except Stopping:
                return
            except Exception:  # noqa: BLE001 - as for a registration
                _LOG.exception("poll_failed")
                self._lost()
                self._closing.wait(backoff.next_s())

    def _poll(self, runner: CommandRunner, life: int, after: int) -> None:
        wait_s, epoch = self._polls.poll_s(), self._epoch
        got = self._surveys.got(epoch)
        status, answer = self._polls.call(
            "GET",
            f"/commands?after={after}&epoch={epoch}&wait_s={wait_s:g}",
            timeout_s=wait_s + REQUEST_S,
            **({SURVEY_HEADER: got} if got else {}),
        )
        if status == HTTPStatus.CONFLICT:
            raise RegisterAgainError(answer.get("detail") or "the ledger does not know this epoch")
        told = _understood(answer, Commands)
        if told is None:
            raise LinkError("the ledger's answer to the poll is not understood")
        if not after and not told.commands:  # the ledger waits for no result of ours
            self._faults.discard("report")
        for data in told.commands:
            self._accept(data, runner)
        self._surveys.want(told.survey, epoch)
        with self._state:
            if life == self._life:
                self._after = told.after
                self._told.polled(told.after)

    def _accept(self, data: dict[str, Any], runner: CommandRunner) -> None:
        try:
            command = read(data, Command)
        except WireError as error:
            _LOG.error("command_not_understood", why=str(error))
            self._decline(data, str(error))
            return
        if not self.is_current(command.epoch):
            _LOG.warning("command_of_old_epoch_ignored", command=command.id, epoch=command.epoch)
            return
        known_at = self._known_at
        new = known_at is not None and command.position > known_at and not command.cancel
        runner.submit(command, resumed=not new)

    def _decline(self, data: dict[str, Any], why: str) -> None:
        """Report the failure, if the command's ids can be read; else it is only logged."""
        error = StepError(kind=ErrorKind.FINAL, code="not_understood", message=why)
        try:
            failed = {"step": data["steps"][0]["name"], "took_ms": 0, "error": plain(error)}
            report = read({**data, "results": [failed]}, Report)
        except (WireError, TypeError, KeyError, IndexError):
            return
        self.report(report)

    # --- shared ---------------------------------------------------------------------------

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        """Keep a fault of this part until it succeeds; that of a report also until none is awaited.
        An unreachable ledger is no fault.
        """
        try:
            yield
        except (LinkError, RegisterAgainError, Stopping):
            raise
        except Exception:
            self._faults.add(part)
            raise
        self._faults.discard(part)

    def _insist(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """The ledger's answer, after any number of attempts.  Raises Stopping."""
        backoff = self._backoff()
        while True:
            try:
                return self._call(method, path, body)
            except LinkError as error:
                self._pause(error, backoff)

    def _call(
        self, method: str, path: str, body: Any = None, timeout_s: float = REQUEST_S, **more: str
    ) -> tuple[int, dict[str, Any]]:
        if self._closing.is_set():
            raise Stopping
        return self._ledger.call(method, path, body, timeout_s, **more)

    def _backoff(self) -> Backoff:
        first_s, max_s = self._settings.backoff_first_s, self._settings.backoff_max_s
        return Backoff(first_s, max_s, random.random)

    def _pause(self, error: LinkError, backoff: Backoff) -> None:
        if self._closing.is_set():
            return
        wait_s = self._settings.denied_retry_s if error.denied else backoff.next_s()
        _LOG.warning("ledger_call_failed", why=str(error), wait_s=round(wait_s, 1))
        self._closing.wait(wait_s)


def _understood(answer: dict[str, Any], kind: type[T]) -> T | None:
    try:
        return read(answer, kind)
    except WireError as error:
        _LOG.error("answer_not_understood", why=str(error))
        return None
